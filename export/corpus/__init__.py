"""Text written for this project: some to measure fidelity on, other to calibrate with. No text is in both."""

from edgespec.export.corpus.calibration import CALIBRATION
from edgespec.export.corpus.held import HELD

__all__ = ["CALIBRATION", "HELD"]
