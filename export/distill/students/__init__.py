"""Drafts that can be trained, each with the public layout that it is written in."""

from __future__ import annotations

from edgespec.export.distill.students.base import Student
from edgespec.export.distill.students.eagle import EagleStudent
from edgespec.export.distill.students.lm import LmStudent
from edgespec.export.distill.students.medusa import MedusaStudent

STUDENTS: dict[str, type[Student]] = {student.kind: student for student in (EagleStudent, MedusaStudent, LmStudent)}

__all__ = ["STUDENTS", "Student"]
