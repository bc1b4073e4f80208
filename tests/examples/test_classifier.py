"""The second task of the worked example: a ResNet and its pictures; and both tasks under trace."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import classifier  # noqa: E402
import gptlite  # noqa: E402
from classifier import SHAPES, Cifar10, Pictures, ResNet, get_model_and_dataset, show_sample  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from gpu_mem_calculator.cli.main import main  # noqa: E402

from . import GPTLITE  # noqa: E402

RESNET_18 = 11_173_962  # with a 3x3 first convolution and 10 classes
TORCHVISION_18 = 11_689_512  # resnet18 in torchvision's list: 7x7, and 1000 classes
RECORD = 3073


def options(**given: Any) -> Namespace:
    """What train.py hands to a task, small where nothing is said."""
    small = {"n_layer": 1, "n_embd": 8, "text": None, "seed": 0, "validation": False}
    return Namespace(**{**small, **given})


# --- the model ---


def test_the_default_is_resnet_18() -> None:
    """Its published parameters but for the first convolution, and three buffers a batch norm."""
    with torch.device("meta"):
        model, _ = get_model_and_dataset(options(n_layer=None, n_embd=None))
        large = ResNet(1000)
    assert sum(one.numel() for one in model.parameters()) == RESNET_18
    first = 64 * 3 * (7 * 7 - 3 * 3)
    assert sum(one.numel() for one in large.parameters()) == TORCHVISION_18 - first
    assert (len(list(model.parameters())), len(list(model.buffers()))) == (62, 20 * 3)
    assert "layer4.0.downsample.1.running_var" in model.state_dict()


def test_a_loss_with_labels_and_logits_without() -> None:
    """In the contract of train.py, and with a batch of one."""
    model, pictures = get_model_and_dataset(options())
    x, y = (one[None] for one in pictures[0])
    assert model(x).shape == (1, 10)
    assert model(x, y).shape == ()


@pytest.mark.parametrize("buffers", [torch.bfloat16, torch.float32])
def test_a_model_in_bf16_takes_the_same_pictures(buffers: Any) -> None:
    """And its loss is fp32; DeepSpeed casts the parameters and leaves the buffers."""
    model, pictures = get_model_and_dataset(options())
    x, y = (one[None] for one in pictures[0])
    for one in model.parameters():
        one.data = one.data.bfloat16()
    for one in model.buffers():
        one.data = one.data.to(buffers) if one.is_floating_point() else one.data
    loss = model(x, y)
    loss.backward()
    assert loss.dtype == torch.float32
    assert model.bn1.weight.grad.dtype == torch.bfloat16
    assert model.bn1.running_mean.dtype == buffers


def test_the_batch_norm_is_that_of_torch() -> None:
    """The same answer and the same running means, in training and after it."""
    ours, theirs = classifier.BatchNorm(3), torch.nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5)
    assert ours(x).equal(theirs(x))
    assert all(
        one.equal(other) for one, other in zip(ours.buffers(), theirs.buffers(), strict=True)
    )
    assert ours.eval()(x).equal(theirs.eval()(x))


@pytest.mark.parametrize("size", ["n_layer", "n_embd"])
def test_a_size_that_makes_no_network_is_refused(size: str) -> None:
    """In one sentence with its name."""
    with pytest.raises(ValueError, match=f"{size}=0 makes no network"):
        get_model_and_dataset(options(**{size: 0}))


# --- the pictures ---


def test_pictures_are_normalised_and_of_all_classes() -> None:
    """About as many of each."""
    drawn = [Pictures()[index] for index in range(500)]
    assert {tuple(x.shape) for x, _ in drawn} == {(3, 32, 32)}
    assert max(x.abs().max() for x, _ in drawn) < 2
    labels = [int(y) for _, y in drawn]
    assert all(25 < labels.count(number) < 85 for number in range(10))
    assert len(SHAPES) == 10


def test_a_picture_is_a_matter_of_part_seed_and_index() -> None:
    """Whatever was drawn before, as on another rank or in a resumed run."""
    one = Pictures("train", 5)[77]
    torch.manual_seed(9)
    random.seed(9)
    again = Pictures("train", 5)[77]
    assert again[0].equal(one[0])
    assert again[1] == one[1]
    assert not Pictures("train", 6)[77][0].equal(one[0])
    assert not Pictures("validation", 5)[77][0].equal(one[0])


def test_pictures_end() -> None:
    """So that a loop over them does."""
    with pytest.raises(IndexError):
        Pictures("validation")[5000]


def test_a_model_on_the_meta_device_has_real_pictures() -> None:
    """Only the model is without data where its sizes are all that is asked."""
    with torch.device("meta"):
        model, pictures = get_model_and_dataset(options())
    assert model.fc.weight.is_meta
    assert pictures[0][0].device.type == "cpu"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tests run side by side: threads that wait for each other would take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.proof
@pytest.mark.usefixtures("one_thread")
def test_the_classifier_learns() -> None:
    """On the CPU, in seconds: from knowing nothing to most of the pictures it never saw."""
    torch.manual_seed(0)
    model, pictures = get_model_and_dataset(options(validation=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _, (x, y) in zip(range(80), DataLoader(pictures, 16), strict=False):
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[:5]) / 5 > 2.1  # ln 10 is 2.3
    assert sum(losses[-5:]) / 5 < 1.5
    first, *lines = show_sample(model, pictures, "cpu").splitlines()
    assert int(first.split()[0]) > 120, first  # of 200; 20 by chance, other seeds: 153 to 186
    assert first.endswith("of 200 pictures are told right")
    assert len(lines) == 5
    assert model.training


# --- CIFAR-10 ---


def cifar(folder: Path, **files: bytes) -> str:
    """A folder of binary files."""
    for name, data in files.items():
        (folder / f"{name}.bin").write_bytes(data)
    return str(folder)


def test_cifar_10_is_read_from_its_binary_files(tmp_path: Path) -> None:
    """A label, then all red, all green and all blue pixels, row by row; the test batch apart."""
    pixels = bytes([255] * 1024 + [0] * 1024 + list(range(32)) * 32)
    folder = cifar(
        tmp_path,
        data_batch_1=b"\x03" + pixels,
        data_batch_2=b"\x09" + pixels,
        test_batch=b"\x00" + pixels,
    )
    _, pictures = get_model_and_dataset(options(text=folder, validation=True))
    assert [pictures.classes[int(y)] for _, y in pictures] == ["cat", "truck"]
    assert [int(y) for _, y in pictures.validation] == [0]
    x, _ = pictures[0]
    assert x.dtype == torch.float32
    assert (x[0] == 1).all()
    assert (x[1] == -1).all()
    assert x[2, 7].tolist() == pytest.approx([(value / 255 - 0.5) / 0.5 for value in range(32)])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "has 0 bytes, no multiple of a record's 3,073"),
        (bytes(RECORD + 1), "has 3,074 bytes, no multiple of a record's 3,073"),
        (b"\x0a" + bytes(RECORD - 1), "has a label 10: CIFAR-10's are 0 to 9"),
    ],
)
def test_broken_files_are_refused(data: bytes, says: str, tmp_path: Path) -> None:
    """Each in one sentence."""
    with pytest.raises(ValueError, match=says):
        Cifar10(cifar(tmp_path, data_batch_1=data))


@pytest.mark.parametrize("validation", [False, True])
def test_a_folder_without_pictures_is_refused(validation: bool, tmp_path: Path) -> None:
    """Those to train on, or those to validate with."""
    folder = cifar(tmp_path, **({"data_batch_1": bytes(RECORD)} if validation else {}))
    missing = "test_batch.bin" if validation else r"data_batch_\*.bin"
    with pytest.raises(ValueError, match=f"has no {missing}: give the folder"):
        get_model_and_dataset(options(text=folder, validation=validation))


# --- trace ---


@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (gptlite, {"n_layer": 2, "n_embd": 32, "n_head": 2, "block_size": 64, "batch_size": 2}),
        (classifier, {"n_layer": 1, "n_embd": 8, "batch_size": 4}),
    ],
    ids=["gptlite", "classifier"],
)
def test_trace_counts_parameters_and_buffers(
    module: Any,
    sizes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Causal masks and running means are what a count of parameters alone forgets."""
    monkeypatch.chdir(GPTLITE)
    given = [word for name, value in sizes.items() for word in ("--with", f"{name}={value}")]
    name = f"{module.__name__}:model_and_batch"
    assert main(["trace", "--function", name, *given, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, batch = module.model_and_batch(**sizes)
    assert len(batch[0]) == sizes["batch_size"]
    parameters = sum(one.numel() for one in model.parameters())
    assert found["num_parameters"] == parameters
    buffers = sum(one.numel() * one.element_size() for one in model.buffers())
    assert buffers > 0
    assert found["at_peak"]["param"] == 4 * parameters + buffers
