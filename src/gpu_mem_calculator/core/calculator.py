"""The calculator, as users import it; it is `estimates/calculator.py`."""

from ..estimates.calculator import Estimate, GPUMemoryCalculator, estimate, full_estimate

__all__ = ["Estimate", "GPUMemoryCalculator", "estimate", "full_estimate"]
