"""The run file and the result as Python objects, as users import them.

They are in `runfile/config.py` and `estimates/result.py`.
"""

from ..estimates.result import (
    MemoryBreakdown,
    MemoryResult,
    OutOfMemory,
    PhaseResult,
    StageResult,
    StepResult,
)
from ..runfile.config import (
    EngineConfig,
    EvaluationConfig,
    GenerationConfig,
    GPUConfig,
    InferenceConfig,
    LoraConfig,
    ModelConfig,
    ParallelismConfig,
    RunFile,
    SamplingConfig,
    TrainingConfig,
)

__all__ = [
    "EngineConfig",
    "EvaluationConfig",
    "GPUConfig",
    "GenerationConfig",
    "InferenceConfig",
    "LoraConfig",
    "MemoryBreakdown",
    "MemoryResult",
    "ModelConfig",
    "OutOfMemory",
    "ParallelismConfig",
    "PhaseResult",
    "RunFile",
    "SamplingConfig",
    "StageResult",
    "StepResult",
    "TrainingConfig",
]
