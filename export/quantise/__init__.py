"""Block-wise weight quantisation, in the layout of ``MatMulNBits``."""

from edgespec.export.quantise.blockwise import Quantised, dequantise, join, quantise
from edgespec.export.quantise.gptq import gptq

__all__ = ["Quantised", "dequantise", "gptq", "join", "quantise"]
