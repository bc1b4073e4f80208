"""The second task: a ResNet tells ten kinds of pictures apart.

Any model and data set will do for train.py: a module like this one, with one function. The pictures
are drawn when they are asked for, so nothing is downloaded; `--text FOLDER` takes CIFAR-10 instead
(the binary version of https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import Dataset

UNUSED = (
    "n_head",
    "block_size",
    "dropout",
    "pipeline",
    "pipeline_spec_layers",
    "activation_checkpointing",
    "partition_activations",
    "contiguous_checkpointing",
)
"""Options of train.py that mean nothing here, and are refused."""
SIZES = {"n_layer": 2, "n_embd": 64}
"""ResNet-18 (He et al. 2015, table 1): blocks per stage, and channels of the first of four."""
SIDE = 32  # pixels
COUNT = {"train": 50_000, "validation": 5_000}  # pictures to draw
SAMPLE = 200  # pictures
NOISE = 0.15


class BatchNorm(nn.BatchNorm2d):
    """A batch norm whose running means keep their dtype, whatever the parameters are cast to.

    For bf16 and fp16 DeepSpeed casts parameters and leaves buffers in fp32, a mixture that torch's
    own batch norm refuses.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Computed with the parameters in the dtype of the buffers; the answer has that of x."""
        if self.training:
            self.num_batches_tracked.add_(1)
        dtype = self.running_mean.dtype
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight.to(dtype),
            self.bias.to(dtype),
            self.training,
            self.momentum,
            self.eps,
        )


class ResidualBlock(nn.Module):
    """Two convolutions beside a short cut. Modules are named as torchvision names them."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(out)
        self.downsample = None
        if (inside, stride) != (out, 1):
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), BatchNorm(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        short = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + short)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss, in fp32 whatever the model's dtype is."""
    return F.cross_entropy(logits.float(), targets)


class ResNet(nn.Module):
    """Four stages, each twice as wide and half as large as the one before.

    The first convolution keeps the size, because the pictures are small: so a batch of one still
    has several pixels per channel in the last stage, which a batch norm needs to train.
    """

    def __init__(self, classes: int = 10, *, n_layer: int = 2, n_embd: int = 64) -> None:
        super().__init__()
        for name, value in {"n_layer": n_layer, "n_embd": n_embd}.items():
            if value < 1:
                raise ValueError(f"{name}={value} makes no network: it must be 1 or more")
        self.conv1 = nn.Conv2d(3, n_embd, 3, padding=1, bias=False)
        self.bn1 = BatchNorm(n_embd)
        self.layer1 = self._stage(n_embd, n_embd, 1, n_layer)
        self.layer2 = self._stage(n_embd, 2 * n_embd, 2, n_layer)
        self.layer3 = self._stage(2 * n_embd, 4 * n_embd, 2, n_layer)
        self.layer4 = self._stage(4 * n_embd, 8 * n_embd, 2, n_layer)
        self.fc = nn.Linear(8 * n_embd, classes)

    @staticmethod
    def _stage(inside: int, out: int, stride: int, blocks: int) -> nn.Sequential:
        first = ResidualBlock(inside, out, stride)
        return nn.Sequential(first, *(ResidualBlock(out, out, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The loss where there are labels, else the logits."""
        x = F.relu(self.bn1(self.conv1(x.to(self.conv1.weight.dtype))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits = self.fc(x.mean(dim=(2, 3)))
        return logits if y is None else cross_entropy(logits, y)


def _larger(u: Tensor, v: Tensor) -> Tensor:
    """How far out a point is in a square."""
    return torch.maximum(u.abs(), v.abs())


SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda u, v: u**2 + v**2 < 1,
    "ring": lambda u, v: ((u**2 + v**2) - 0.7).abs() < 0.3,
    "square": lambda u, v: _larger(u, v) < 0.9,
    "frame": lambda u, v: (_larger(u, v) - 0.75).abs() < 0.2,
    "triangle": lambda u, v: (v.abs() < 0.9) & (u.abs() < (v + 0.9) / 1.8),
    "plus": lambda u, v: (torch.minimum(u.abs(), v.abs()) < 0.25) & (_larger(u, v) < 1),
    "cross": lambda u, v: ((u.abs() - v.abs()).abs() < 0.3) & (_larger(u, v) < 1),
    "rows": lambda u, v: (torch.sin(7 * v) > 0) & (_larger(u, v) < 1),
    "columns": lambda u, v: (torch.sin(7 * u) > 0) & (_larger(u, v) < 1),
    "squares": lambda u, v: (torch.sin(5 * u) * torch.sin(5 * v) > 0) & (_larger(u, v) < 1),
}
"""Which points (right, down) a shape of size 1 covers: the ten classes."""


class Pictures(Dataset):
    """Pictures of shapes: where, how large and in which colours is drawn from seed and index.

    So all ranks, and a run that is resumed, see the same pictures.
    """

    classes = tuple(SHAPES)
    validation: Pictures | None = None  # what was held out, where something was

    def __init__(self, part: str = "train", seed: int = 0) -> None:
        self.part, self.seed = part, seed
        line = torch.arange(SIDE, device="cpu") - (SIDE - 1) / 2  # also beside a meta model
        self.down, self.right = torch.meshgrid(line, line, indexing="ij")

    def __len__(self) -> int:
        return COUNT[self.part]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"picture {index} of {len(self)}")
        draw = random.Random(f"{self.part} {self.seed} {index}")
        label = draw.randrange(len(self.classes))
        radius = draw.uniform(7, 13)
        u = (self.right - draw.uniform(-3, 3)) / radius
        v = (self.down - draw.uniform(-3, 3)) / radius
        noise = torch.Generator().manual_seed(draw.getrandbits(63))
        back = [draw.uniform(-1, 0) for _ in range(3)]
        front = [colour + draw.uniform(0.4, 1) for colour in back]
        covered = SHAPES[self.classes[label]](u, v)
        picture = torch.where(
            covered, torch.tensor(front)[:, None, None], torch.tensor(back)[:, None, None]
        )
        picture += NOISE * torch.randn(picture.shape, generator=noise)
        return picture, torch.tensor(label)


class Cifar10(Dataset):
    """CIFAR-10 from its binary files: records of a label and 32x32 red, green and blue bytes."""

    classes = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    record = 1 + 3 * SIDE * SIDE
    validation: Cifar10 | None = None

    def __init__(self, folder: str, files: str = "data_batch_*.bin") -> None:
        found = sorted(Path(folder).expanduser().glob(files))
        if not found:
            raise ValueError(f"{folder} has no {files}: give the folder of CIFAR-10's binary files")
        self.records = torch.cat([self._records(path) for path in found])

    def _records(self, path: Path) -> Tensor:
        data = path.read_bytes()
        if not data or len(data) % self.record:
            raise ValueError(
                f"{path} has {len(data):,} bytes, no multiple of a record's {self.record:,}: "
                "download CIFAR-10's binary version again"
            )
        records = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, self.record)
        if (highest := int(records[:, 0].max())) >= len(self.classes):
            raise ValueError(f"{path} has a label {highest}: CIFAR-10's are 0 to 9")
        return records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        record = self.records[index]
        return record[1:].reshape(3, SIDE, SIDE) / 127.5 - 1, record[0].long()


def get_model_and_dataset(options: Namespace) -> tuple[ResNet, Pictures | Cifar10]:
    """A ResNet, and the pictures that it learns from.

    `n_layer` is its residual blocks per stage and `n_embd` its channels in the first stage; those
    that are None are ResNet-18's. With `validation` there are further pictures that were held out.
    """
    given = {name: getattr(options, name) for name in SIZES}
    sizes = {name: SIZES[name] if value is None else value for name, value in given.items()}
    dataset: Pictures | Cifar10
    if options.text is None:
        dataset = Pictures("train", options.seed)
        held_out = Pictures("validation", options.seed) if options.validation else None
    else:
        dataset = Cifar10(options.text)
        held_out = Cifar10(options.text, "test_batch.bin") if options.validation else None
    dataset.validation = held_out
    return ResNet(len(dataset.classes), **sizes), dataset


@torch.no_grad()
def show_sample(model: ResNet, dataset: Pictures | Cifar10, device: torch.device | str) -> str:
    """How many pictures the model tells right, and what it says of the first few."""
    pictures = dataset.validation or dataset
    chosen = [pictures[index] for index in range(min(SAMPLE, len(pictures)))]
    x, y = (torch.stack(column) for column in zip(*chosen, strict=True))
    training = model.training
    model.eval()
    try:
        told = model(x.to(device)).argmax(dim=1).cpu()
    finally:
        model.train(training)
    names = [
        (dataset.classes[label], dataset.classes[said]) for label, said in zip(y, told, strict=True)
    ]
    lines = [f"{right:>10} is taken for {said}" for right, said in names[:5]]
    return "\n".join([f"{int((told == y).sum())} of {len(chosen)} pictures are told right", *lines])


def model_and_batch(
    *, batch_size: int = 64, n_layer: int = SIZES["n_layer"], n_embd: int = SIZES["n_embd"]
) -> tuple[ResNet, tuple[Tensor, Tensor]]:
    """A model and a batch, for `gpu-mem-calc ... --function classifier:model_and_batch`."""
    model = ResNet(n_layer=n_layer, n_embd=n_embd)
    return model, (torch.randn(batch_size, 3, SIDE, SIDE), torch.randint(0, 10, (batch_size,)))
