"""Types of the run file's keys, with their limits in words."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ..models.families.config import MOST_LAYERS


class RowName(Struct, frozen=True):
    """In a key's type: its values are the names of the rows of a table (see `sections`)."""

    table: str


Count = Annotated[int, Meta(ge=1, le=10**9, description="a whole number from 1 to 1,000,000,000")]
Layers = Annotated[
    int, Meta(ge=1, le=MOST_LAYERS, description=f"a whole number from 1 to {MOST_LAYERS:,}")
]
MOST_STAGES = 256  # of a pipeline; each has a ledger of its own
Stages = Annotated[
    int, Meta(ge=1, le=MOST_STAGES, description=f"a whole number from 1 to {MOST_STAGES}")
]
MOST_EACH = 2**20
"""Of what is looked at one by one: sizes of graphs, adapters."""
Each = Annotated[
    int, Meta(ge=1, le=MOST_EACH, description=f"a whole number from 1 to {MOST_EACH:,}")
]
EachOrNone = Annotated[
    int, Meta(ge=0, le=MOST_EACH, description=f"a whole number from 0 to {MOST_EACH:,}")
]
Size = Annotated[int, Meta(ge=0, le=10**15, description="a whole number from 0 to 10^15")]
Rate = Annotated[float, Meta(ge=0.0, lt=1.0, description="at least 0 and less than 1")]

Positive = Annotated[float, Meta(ge=0.001, le=1e12, description="a number from 0.001 to 10^12")]
Flag = Annotated[bool, Meta(description="true or false")]
Text = Annotated[str, Meta(min_length=1, description="a string")]
Revision = Annotated[
    str, Meta(min_length=1, max_length=255, description="a branch, a tag or a commit on the hub")
]
Object = Annotated[dict[str, Any], Meta(description="an object")]
Lengths = Annotated[
    list[int] | dict[str, Any] | str,
    Meta(description="a list of lengths, a distribution of them, or a file's path"),
]
Parameters = Annotated[
    int | float | str,
    Meta(description='a count such as 7000000000, "7B", "7000M", "7e9" or "1.5T"'),
]
Card = Annotated[str | int, Meta(description="a card's name")]  # 4090 unquoted is a number
Offload = Literal["none", "cpu", "nvme"]
Levels = Literal["none", "selective", "full"] | Annotated[int, Meta(ge=0, le=4)]
Loss = Annotated[str, RowName("losses")]
Reference = Annotated[bool, Meta(description="true or false")] | Literal["precomputed"]
Compile = (
    Annotated[bool, Meta(description="true or false")]
    | Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
Policy = Annotated[
    str | dict[str, Any],
    Meta(description="a policy's name, or an object with a framework's own keys"),
]
Share = Annotated[float, Meta(ge=1e-6, le=1.0, description="above 0 and at most 1")]
Ratio = Annotated[float, Meta(ge=0.0, le=1e6, description="a number from 0 to 1,000,000")]
Named = Annotated[str | dict[str, Any], Meta(description="a model's name, or its config.json")]
