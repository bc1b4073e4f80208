"""Secrets in what a user gives: recognised by their name or their form, and never kept.

A value is replaced where it enters (`hidden`, `hidden_words`, `hide`), so that nothing behind that
point can print, save or export it. Where a run is built, its key is left out (`without_secrets`).
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Sequence
    from typing import TypeVar

    T = TypeVar("T")

NOT_KEPT = "not-kept"  # stands for a secret: one plain word in JSON, YAML, TOML and a shell
REASON = "a secret: not kept"
# A text without any of these (in lower case) has no secret that could be recognised.
HINTS = (
    *("token", "key", "secret", "passw", "passphrase", "credential", "authorization", "://"),
    *("hf_", "api_org_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("xox", "akia", "asia", "aiza", "eyj", "nvapi-", "bearer", "sig=", "signature"),
)
STRONG_NAME = (
    r"passw(?:or)?d|passphrase|secret|credential|authorization"
    r"|(?:api|access|private|account|auth|encryption|storage|ssh|signing|subscription|admin"
    r"|wandb|openai|anthropic|aws|azure|gcp|google|hf|comet|swanlab|neptune|mlflow|clearml)_?keys?"
)
# `token` is the last word of a name, or follows the word of a service.
TOKEN_NAME = (
    r"(?:^|_)token$"
    r"|(?:hub|hf|huggingface|api|auth|access|session|security|github|gitlab|wandb)_?token(?:_value)?$"
)
# Words in front of `token` that name a token of text.
TEXT_WORDS = (
    "eos bos pad unk sep cls mask eot eom boi eoi im fim image img video audio vision speech text "
    "modality patch start end stop special extra added pause think thinking prefix suffix middle "
    "separator delimiter placeholder trigger instruction response assistant system tool step "
    "context decoder per each by next first last new draft sample seq max min num output input"
)
TEXT_TOKENS = frozenset(TEXT_WORDS.split())
FORMS = (
    r"(?:hf_|api_org_)[A-Za-z0-9]{20,}",  # Hugging Face
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"glpat-[A-Za-z0-9_-]{16,}",
    r"xox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{30,}",  # Google
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)?",  # a JSON web token
)
PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|\Z)"
BEARER = r"(?P<bearer>\b[Bb]earer\s+)[A-Za-z0-9._~+/=-]{8,}"
LOGIN = r"(?<=://)(?:[^/\s:@\"']*:[^/\s@\"']+|[^/\s:@\"']{16,})(?=@)"
QUERY = (
    r"(?P<query>[?&](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|sig|signature|token"
    r"|access_token|api_?key|key|AWSAccessKeyId)=)[^&\s\"'#]+"
)
VALUE = r"(?P<quote>[\"'])?(?P<value>(?(quote)[^\"'\n]+|[^\s\"',;&)}\]]+))"
ASSIGNED = (
    r"(?P<name>[A-Za-z][\w.-]*)"
    r"(?P<sign>[\"']?\s*=\s*|\\?[\"']\s*:\s*\\?|:[ \t]+(?=[\"']?[^\s\"']+[\"']?\s*[}\],]?\s*$))"
    + VALUE
)
OPTION = r"(?P<name>(?<![\w-])--?[A-Za-z][\w.-]*)(?P<sign>\s+)(?!-)" + VALUE
# Twelve letters and digits or more, of both cases, with digits in two places: nobody types that.
RANDOM = (
    r"(?<![\w/.-])(?=\w*[a-z])(?=\w*[A-Z])(?=[A-Za-z]*[0-9]+[A-Za-z]+[0-9])"
    r"[A-Za-z0-9]{12,}(?![\w/.-])"
)
REFERENCE = r"\$\w+|\$\{\w+\}|\$\(.*\)|\$\{\{.*\}\}"  # a variable that has the secret
KEY = r"(?=[A-Za-z]*\d)[A-Za-z0-9]{24,}"  # the value of what is named `key` alone, such as wandb's
PLAIN = frozenset(("true", "false", "none", "null", "auto", "yes", "no", "0", "1"))


def hide(text: str) -> str:
    """A text with each secret in it replaced: by its form, and where a secret name is in front."""
    if not _has_hint(text):
        return text
    return _hide_values(ASSIGNED, hide_forms(text))


def hide_command(text: str) -> str:
    """`hide` for a text that may have options: also a value after `--api-key`."""
    return _hide_values(OPTION, hide(text)) if _has_hint(text) else text


def hide_forms(text: str) -> str:
    """A text with what has the form of a secret replaced, and all else as it was."""
    return _pattern(_forms()).sub(_hide_form, text) if _has_hint(text) else text


def hide_long(text: str, most: int) -> str:
    """The begin of a long text, without secrets, and without a last word that is cut in two, which
    may be the begin of one.
    """
    begin = text[:most]
    cut = len(text) > most and not text[most - 1 : most + 1].isspace()
    return hide_command(_pattern(r"\S+\Z").sub("", begin) if cut else begin)


def hidden_words(words: Sequence[str]) -> list[str]:
    """The words of a command with their secrets replaced."""
    names = ("", *(word if word.startswith("-") and "=" not in word else "" for word in words))
    return [
        NOT_KEPT if is_secret(name, word) and not word.startswith("-") else hide_command(word)
        for name, word in zip(names, words, strict=False)
    ]


def printed_words(words: Sequence[str]) -> list[str]:
    """The words of a command that is shown: also without what looks random, as the value of an
    option that nobody knows may be a secret.
    """
    return [hide_random(word) for word in hidden_words(words)]


def hide_random(text: str) -> str:
    """A text without what looks random."""
    return _pattern(RANDOM).sub(NOT_KEPT, text)


def hidden(data: T) -> T:
    """Data with the secrets in it replaced: of a file, or of an answer that quotes a text."""
    return _hidden(data)  # type: ignore[return-value]


def _hidden(data: object) -> object:
    if isinstance(data, str):
        return hide_command(data)
    if isinstance(data, dict):
        named = data.get("name", data.get("key"))  # of a variable of a container: name and value
        return {
            hide_forms(key) if isinstance(key, str) else key: NOT_KEPT
            if is_secret(key, value) or (key == "value" and is_secret(named, value))
            else _hidden(value)
            for key, value in data.items()
        }
    if isinstance(data, list):
        if data and all(type(one) is str for one in data):
            return hidden_words(data)
        return [_hidden(one) for one in data]
    if isinstance(data, tuple):
        return tuple(map(_hidden, data))
    names = getattr(data, "__struct_fields__", ())
    return type(data)(**{name: _hidden(getattr(data, name)) for name in names}) if names else data


def without_secrets(data: T, dropped: list[str]) -> T:
    """Data without the keys whose values are secrets, which are added to `dropped`."""
    return _without(data, dropped)  # type: ignore[return-value]


def _without(data: object, dropped: list[str]) -> object:
    if isinstance(data, dict):
        secret = [key for key, value in data.items() if is_secret(key, value)]
        dropped += map(str, secret)
        return {key: _without(value, dropped) for key, value in data.items() if key not in secret}
    if isinstance(data, list):
        return [_without(one, dropped) for one in data]
    return hide_forms(data) if isinstance(data, str) else data


def is_secret(name: object, value: object) -> bool:
    """Whether a value is a secret by the name of its key, option or variable."""
    if not isinstance(name, str) or not isinstance(value, str | int) or isinstance(value, bool):
        return False
    strong, token = _secret_name(name)
    if isinstance(value, int):
        return strong
    text = value.strip()
    if name == "key" and _pattern(KEY).fullmatch(text):
        return True
    if not (strong or token) or text.lower() in PLAIN or not text:
        return False
    if token and not strong and text.startswith(("<", "[", "|")):  # a special token of a model
        return False
    return not _pattern(REFERENCE).fullmatch(text)


@cache
def _secret_name(name: str) -> tuple[bool, bool]:
    """Whether a name is always that of a secret, and whether it is that of a token."""
    if not _has_hint(name):
        return False, False
    words = _pattern(r"(?<=[a-z0-9])(?=[A-Z])").sub("_", name.strip("-+ "))
    plain = words.lower().replace("-", "_").replace(".", "_")
    strong = bool(_pattern(STRONG_NAME).search(plain))
    before = plain.removesuffix("_token").rpartition("_")[2]
    return strong, bool(_pattern(TOKEN_NAME).search(plain)) and before not in TEXT_TOKENS


def _has_hint(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in HINTS)


def _hide_values(form: str, text: str) -> str:
    """A text without the values whose names are those of secrets; other values may have some."""
    kept, done, at = [], 0, 0
    while found := _pattern(form).search(text, at):
        name, value = found["name"], found["value"]
        if value.startswith("=") or not is_secret(name.lstrip("-"), value):
            at = found.end("sign")
            continue
        kept += [text[done : found.start("value")], NOT_KEPT]
        done = at = found.end()
    return "".join((*kept, text[done:]))


def _hide_form(found: re.Match[str]) -> str:
    return f"{found['bearer'] or found['query'] or ''}{NOT_KEPT}"


def _forms() -> str:
    tokens = rf"(?<![A-Za-z0-9])(?:{'|'.join(FORMS)})"
    return "|".join((tokens, PRIVATE_KEY, BEARER, LOGIN, f"(?i:{QUERY})"))


@cache
def _pattern(text: str) -> re.Pattern[str]:
    import re

    return re.compile(text, re.MULTILINE)
