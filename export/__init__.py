"""edgespec.export: checkpoint -> ONNX bundle."""

from edgespec.export.config import ExportConfig, ExportReport
from edgespec.export.pipeline import Prepared, export_bundle, prepare, write_bundle

__all__ = ["ExportConfig", "ExportReport", "Prepared", "export_bundle", "prepare", "write_bundle"]
