"""LLMGPUMemEstimator's README: every printed number, to the last bit."""

import pytest

from gpu_mem_calculator.estimates.published.estimator import Estimator


def _small() -> Estimator:
    """The README's custom model."""
    return Estimator(model_params=5e8, a=16, h=1024, L=24)


def test_inference_of_the_default_model() -> None:
    """7e9 parameters take 2 or 4 bytes each."""
    estimator = Estimator()
    assert estimator.estimate_gpu_memory_inference(precision=2) == 13.0385160446167
    assert estimator.estimate_gpu_memory_inference(precision=4) == 26.0770320892334


def test_training_on_one_gpu() -> None:
    """Stage 0 on one GPU: total, model, activation, buffer."""
    assert Estimator().estimate_gpu_memory_training() == (
        120.7826795578003,
        104.3081283569336,
        3.43603515625,
        13.0385160446167,
    )


def test_stage_3_on_four_gpus() -> None:
    """Stage 3 divides the model states by the GPUs and nothing else."""
    assert Estimator().estimate_gpu_memory_training(stage=3, gpu_num=4) == (
        42.5515832901001,
        26.0770320892334,
        3.43603515625,
        13.0385160446167,
    )


def test_longer_sequence() -> None:
    """A sequence length given to the call replaces the constructor's."""
    assert Estimator().estimate_gpu_memory_training(stage=3, gpu_num=4, s=2048) == (
        67.8596887588501,
        26.0770320892334,
        28.744140625,
        13.0385160446167,
    )


def test_inference_of_a_custom_model() -> None:
    """5e8 parameters at 16 bits."""
    assert _small().estimate_gpu_memory_inference(precision=2) == 0.9313225746154785


def test_training_of_a_custom_model() -> None:
    """The custom model on one GPU, stage 0."""
    assert _small().estimate_gpu_memory_training() == (
        9.310125827789307,
        7.450580596923828,
        0.92822265625,
        0.9313225746154785,
    )


def test_training_of_a_custom_model_on_four_gpus() -> None:
    """The custom model at stage 3 with the longer sequence."""
    assert _small().estimate_gpu_memory_training(stage=3, gpu_num=4, s=2048) == (
        12.131858348846436,
        1.862645149230957,
        9.337890625,
        0.9313225746154785,
    )


@pytest.mark.parametrize(("stage", "bytes_per_parameter"), [(1, 7), (2, 5.5), (3, 4)])
def test_stages_between(stage: int, bytes_per_parameter: float) -> None:
    """On four GPUs a parameter takes 4 + 12/4, 2 + 14/4 and 16/4 bytes of model states."""
    _, model, _, _ = Estimator().estimate_gpu_memory_training(stage=stage, gpu_num=4)
    assert model == bytes_per_parameter * 7e9 / 2**30


def test_batch_of_a_call_replaces_the_constructors() -> None:
    """Activations grow in proportion to the micro-batch, wherever it is given."""
    in_call = Estimator().estimate_gpu_memory_training(b=4)
    assert in_call == Estimator(b=4).estimate_gpu_memory_training()
    assert in_call[2] == 4 * 3.43603515625


def test_unknown_stage_is_refused() -> None:
    """A stage that does not exist is an error, never a silent stage 0."""
    with pytest.raises(ValueError, match="stage=4 is not a ZeRO stage"):
        Estimator().estimate_gpu_memory_training(stage=4)
