"""What is installed where a command would run, on environments that are made here."""

from pathlib import Path

import pytest

from gpu_mem_calculator.tools.launchers.environments import installed
from gpu_mem_calculator.tools.releases.release import FoundReleases


def environment(prefix: Path, *packages: str, programs: tuple[str, ...] = ()) -> Path:
    """An environment as pip leaves it, with programs that its Python runs."""
    place = prefix / "lib" / "python3.12" / "site-packages"
    place.mkdir(parents=True)
    for one in packages:
        (place / f"{one}.dist-info").mkdir()
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python3").write_bytes(b"\x7fELF")
    for name in programs:
        program = prefix / "bin" / name
        program.write_text(f"#!{prefix}/bin/python3\nimport sys\n", encoding="utf-8")
        program.chmod(0o755)
    return prefix


def versions(found: FoundReleases) -> dict[str, str]:
    """The releases by package."""
    return {one.package: one.version for one in found.releases}


def test_a_program_on_the_path_names_its_environment(tmp_path: Path) -> None:
    """By its first line; packages that do not matter are left out."""
    place = environment(tmp_path / "env", "vllm-0.14.1", "rich-14.0", programs=("vllm",))
    found = installed(["vllm", "serve", "m"], tmp_path, {"PATH": f"{place}/bin"})
    assert versions(found) == {"vllm": "0.14.1"}
    assert found.releases[0].read_from == str(place)


@pytest.mark.parametrize(
    "words",
    [
        ["env/bin/python3", "train.py"],
        ["CUDA_VISIBLE_DEVICES=0", "nohup", "env/bin/python3", "train.py"],
        ["srun", "-N", "2", "env/bin/python3", "train.py"],
    ],
)
def test_a_python_that_the_command_names_has_its_own_packages(
    tmp_path: Path, words: list[str]
) -> None:
    """Behind variables, wrappers and srun, too."""
    environment(tmp_path / "env", "ms_swift-4.2.0", "transformers-4.57.1+cu129")
    found = installed(words, tmp_path, {})
    assert versions(found) == {"ms-swift": "4.2.0", "transformers": "4.57.1+cu129"}


def test_uv_runs_in_the_projects_environment(tmp_path: Path) -> None:
    """Beside the project's files."""
    environment(tmp_path / ".venv", "trl-0.24.0")
    assert versions(installed(["uv", "run", "trl", "sft"], tmp_path, {})) == {"trl": "0.24.0"}


def test_conda_names_an_environment(tmp_path: Path) -> None:
    """By name below conda's folder, or by prefix; a name that is not there is a sentence."""
    place = environment(tmp_path / "conda" / "envs" / "llm", "vllm-0.9.2")
    (place / "conda-meta").mkdir()
    (place / "conda-meta" / "llama.cpp-b4719-cuda_1.json").touch()
    variables = {"CONDA_EXE": f"{tmp_path}/conda/bin/conda"}
    named = installed(["conda", "run", "-n", "llm", "vllm", "serve"], tmp_path, variables)
    assert versions(named) == {"vllm": "0.9.2", "llama-cpp": "b4719"}
    by_prefix = installed(["conda", "run", "-p", str(place), "vllm"], tmp_path, variables)
    assert versions(by_prefix) == versions(named)
    absent = installed(["conda", "run", "-n", "lost", "vllm"], tmp_path, variables)
    assert absent.notes == ("the conda environment lost is not on this machine",)


def test_a_broken_environment_ends_in_a_sentence(tmp_path: Path) -> None:
    """An interpreter that is gone, a Python that is not there, two releases of one package."""
    place = environment(tmp_path / "env", "vllm-0.9.2", "vllm-0.8.5", programs=("vllm",))
    path = {"PATH": f"{place}/bin"}
    assert "has 0.8.5 and 0.9.2 of vllm" in installed(["vllm"], tmp_path, path).notes[0]
    (place / "bin" / "python3").unlink()
    assert "which is not there" in installed(["vllm"], tmp_path, path).notes[0]
    gone = installed(["other/bin/python", "train.py"], tmp_path, path)
    assert gone.notes == ("other/bin/python is not on this machine",)


@pytest.mark.parametrize("place", ["lib", "lib/python3.12", "bin/python3", "conda-meta"])
def test_links_to_themselves_end_in_a_sentence_or_are_left_out(tmp_path: Path, place: str) -> None:
    """At every place that is looked at."""
    prefix = tmp_path / "env"
    for folder in ("bin", Path(place).parent):
        (prefix / folder).mkdir(parents=True, exist_ok=True)
    (prefix / "bin" / "python3").touch()
    (prefix / place).unlink(missing_ok=True)
    (prefix / place).symlink_to(prefix / place)
    found = installed(["env/bin/python3", "train.py"], tmp_path, {})
    assert found.releases == ()
    said = ("is not on this machine", "cannot be read", "has no packages")
    assert all(any(words in note for words in said) for note in found.notes)


def test_an_environment_without_a_lib_is_a_sentence(tmp_path: Path) -> None:
    """As one is left whose folder was copied in part."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python3").touch()
    found = installed(["env/bin/python3", "train.py"], tmp_path, {})
    assert found == FoundReleases(notes=(f"{tmp_path / 'env'} has no packages",))


@pytest.mark.parametrize(
    "left", ["vllm", "vllm.egg-info", "vllm.dist-info", "vllm-.dist-info", "vllm-none.dist-info"]
)
def test_a_package_without_a_release_is_named(tmp_path: Path, left: str) -> None:
    """Its metadata is gone or has no version; what pip left of another one is no package."""
    place = environment(tmp_path / "env", "trl-0.24.0", "~llm-0.9.2")
    site = place / "lib" / "python3.12" / "site-packages"
    for name in {"vllm", left}:
        (site / name).mkdir()
    found = installed(["env/bin/python3", "train.py"], tmp_path, {})
    assert versions(found) == {"trl": "0.24.0"}
    assert found.notes == (f"{place} has vllm, but nothing there says its release",)


def test_what_may_not_be_read_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder's name."""
    place = environment(tmp_path / "env", "vllm-0.9.2") / "lib" / "python3.12" / "site-packages"

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("os.listdir", refuse)
    found = installed(["env/bin/python3", "train.py"], tmp_path, {})
    assert found.notes == (f"{place} cannot be read: Permission denied",)


@pytest.mark.parametrize(
    "words", [["docker", "run", "image"], ["vllm", "serve"], ["./train.sh"], []]
)
def test_a_command_that_runs_elsewhere_has_no_releases_here(
    tmp_path: Path, words: list[str]
) -> None:
    """Nothing is said of it."""
    assert installed(words, tmp_path, {"PATH": str(tmp_path)}) == FoundReleases()


def test_pyenv_chooses_a_python(tmp_path: Path) -> None:
    """Its shim names no environment: a file of the project does, or pyenv's own."""
    (tmp_path / "pyenv" / "shims").mkdir(parents=True)
    shim = tmp_path / "pyenv" / "shims" / "python"
    shim.write_text("#!/usr/bin/env bash\n")
    shim.chmod(0o755)
    environment(tmp_path / "pyenv" / "versions" / "3.12.1", "vllm-0.14.1")
    environment(tmp_path / "pyenv" / "versions" / "old", "vllm-0.9.2")
    (tmp_path / "pyenv" / "version").write_text("3.12.1\n")
    words, path = ["python", "train.py"], {"PATH": str(shim.parent)}
    assert versions(installed(words, tmp_path, path)) == {"vllm": "0.14.1"}
    (tmp_path / ".python-version").write_text("old\n")
    assert versions(installed(words, tmp_path, path)) == {"vllm": "0.9.2"}
    absent = installed(words, tmp_path, {**path, "PYENV_VERSION": "3.9"})
    assert absent.notes == (f"pyenv has no Python '3.9' in {tmp_path / 'pyenv'}",)
