"""The settings in torch's variable, and one sentence for each that torch would refuse."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings, AllocatorSettingsError

MIB = 2**20


def test_an_empty_text_is_torchs_defaults() -> None:
    """An empty variable changes nothing."""
    assert AllocatorSettings.parse("") == AllocatorSettings()


def test_settings_are_read_as_torch_reads_them() -> None:
    """Keys, MiB, shares and flags, with spaces anywhere."""
    text = "expandable_segments:True, max_split_size_mb: 128,garbage_collection_threshold:0.6"
    assert AllocatorSettings.parse(text) == AllocatorSettings(
        expandable_segments=True, max_split_bytes=128 * MIB, garbage_collection_threshold=0.6
    )


def test_sizes_of_segments_and_rounding_are_read() -> None:
    """The less common sizes are settings, too."""
    settings = AllocatorSettings.parse("max_non_split_rounding_mb:64,large_segment_size_mb:12")
    assert settings.max_non_split_rounding_bytes == 64 * MIB
    assert settings.large_segment_bytes == 12 * MIB


def test_one_number_of_divisions_is_for_all_sizes() -> None:
    """`roundup_power2_divisions:4` fills all sixteen intervals."""
    assert (
        AllocatorSettings.parse("roundup_power2_divisions:4").roundup_power2_divisions == (4,) * 16
    )


def test_a_list_of_divisions_fills_below_its_first_and_above_its_last() -> None:
    """`[64:8,256:4,>:1]`: 8 up to 64 MiB, none for 128 MiB, 4 for 256 MiB, 1 above."""
    divisions = AllocatorSettings.parse(
        "roundup_power2_divisions:[64:8,256:4,>:1]"
    ).roundup_power2_divisions
    assert divisions == (8,) * 7 + (0, 4) + (1,) * 7


def test_settings_that_do_not_change_device_memory_are_accepted() -> None:
    """Those of pinned memory and locks."""
    assert (
        AllocatorSettings.parse("pinned_use_background_threads:True,backend:native")
        == AllocatorSettings()
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("expandable_segment:True", "did you mean 'expandable_segments'?"),
        ("gibberish:1", "'gibberish' is no setting of the allocator; try one of expandable_seg"),
        ("expandable_segments:true", "expandable_segments:true is neither True nor False"),
        (
            "max_split_size_mb:10",
            "max_split_size_mb:10 must be at least 20, the size of a large segment",
        ),
        ("max_split_size_mb:lots", "max_split_size_mb:lots must be a whole number of MiB"),
        ("large_segment_size_mb:8", "large_segment_size_mb:8 must be more than 10; try 20"),
        (
            "max_split_size_mb:20,large_segment_size_mb:25",
            "max_split_size_mb:20 must be at least 25",
        ),
        ("garbage_collection_threshold:1.5", "must be between 0 and 1"),
        ("garbage_collection_threshold:x", "must be between 0 and 1"),
        ("roundup_power2_divisions:3", "takes powers of two, not '3'"),
        ("roundup_power2_divisions:[64:x]", "takes powers of two, not 'x'"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync is not modelled; try backend:native"),
        ("per_process_memory_fraction:0.5", "give the cap in bytes instead"),
    ],
)
def test_a_setting_that_torch_refuses_is_one_sentence(text: str, sentence: str) -> None:
    """A wrong setting names itself, the rule and the nearest fix."""
    with pytest.raises(AllocatorSettingsError) as caught:
        AllocatorSettings.parse(text)
    (problem,) = caught.value.problems
    assert sentence in problem


def test_all_problems_are_reported_at_once() -> None:
    """Two wrong settings are two sentences."""
    with pytest.raises(AllocatorSettingsError) as caught:
        AllocatorSettings.parse("expandable_segments:yes,max_split_size_mb:1")
    assert len(caught.value.problems) == 2
