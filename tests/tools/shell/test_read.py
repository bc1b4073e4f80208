"""The commands that a shell script would start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.reading import tools
from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.shell.read import main_command, read_allocation, read_script
from tests.tools.reading_of import readings_of

NO_FILES = NamedFiles(folder=None)


def words(text: str, *arguments: str) -> list[str]:
    """The arguments of the one command of a script."""
    return list(command(text, *arguments).words[1:])


def command(text: str, *arguments: str, files: NamedFiles = NO_FILES, path: str = "") -> Command:
    """The main command of a script."""
    return main_command(read_script(text, files, arguments, path=path))


# A script, and the arguments of `train.py` in it.
WORDS = [
    ("python train.py --a 'x y' \"b\"  # --c", ["--a", "x y", "b"]),
    ("python train.py \\\n  --a 1 \\\n  --b 2\n", ["--a", "1", "--b", "2"]),
    ("$ python train.py --a 1", ["--a", "1"]),
    ("A=1; B=$A$A; python train.py $A ${B} \"$A $B\" '$A'", ["1", "11", "1 11", "$A"]),
    ("A='1 2'; python train.py $A \"$A\"", ["1", "2", "1 2"]),
    ("python train.py ${A:-3} ${B:=4} $B ${B:+set} ${C:+set}", ["3", "4", "4", "set"]),
    ("A=x; python train.py ${A:-3} ${A-3} ${#A}", ["x", "x", "1"]),
    (
        "P=/a/b.tar.gz; python train.py ${P##*/} ${P%.*} ${P%%.*} ${P#/}",
        ["b.tar.gz", "/a/b.tar", "/a/b", "a/b.tar.gz"],
    ),
    (
        "A=a-b-c; python train.py ${A/-/_} ${A//-/_} ${A^^} ${A:0:1} ${A: -1}",
        ["a_b-c", "a_b_c", "A-B-C", "a", "c"],
    ),
    (
        "A=(--a 1 '2 3'  # said (so)\n --b); A+=(4); python train.py \"${A[@]}\" ${#A[@]} ${A[1]}",
        ["--a", "1", "2 3", "--b", "4", "5", "1"],
    ),
    ('A=(); python train.py "${A[@]}" "$EMPTY[@]" \'\'', ["$EMPTY[@]", ""]),
    ("declare -A M=([a]=1 [b]=2); K=b; python train.py ${M[$K]} ${M[a]}", ["2", "1"]),
    (
        "N=4; G=8; python train.py $((N * G)) $(( N/3 - 2 )) $((2**3)) $((N > 3))",
        ["32", "-1", "8", "1"],
    ),
    ("i=1; ((i++)); ((i+=3)); let x=1; python train.py $i", ["5"]),
    ("O='--a'; O=\"$O --b\"; O+=' --c'; eval python train.py $O", ["--a", "--b", "--c"]),
    ('C="python train.py --a \'x y\'"; echo $C; eval "$C"', ["--a", "x y"]),
    ("bash -c 'python train.py --a $1' name 5", ["--a", "5"]),
    ("f() { local X=$1; python train.py --a $X; }\nf 7", ["--a", "7"]),
    ("function f { python train.py $@; }; f 1 '2 3'", ["1", "2", "3"]),
    ("if [ $A = 1 ]; then X=a; else X=b; fi; python train.py $X", ["b"]),
    ("A=1; if [[ $A == 1 && -n $A ]]; then X=a; else X=b; fi; python train.py $X", ["a"]),
    ("A=8; if [ $A -gt 8 ]; then X=a; elif [ $A -ge 8 ]; then X=b; fi; python train.py $X", ["b"]),
    ('[ -z "$A" ] && A=1; [ -n "$A" ] || A=2; python train.py $A', ["1"]),
    ("if [ -z $A ]; then echo usage; exit 1; fi; python train.py", []),
    ("A=b; case $A in a) X=1;; b|c) X=2;; *) X=3;; esac; python train.py $X", ["2"]),
    ("A=q; case $A in a) X=1;; *) X=3;; esac; python train.py $X", ["3"]),
    ("A=x; (A=y; echo $A); { A=${A}z; }; python train.py $A", ["xz"]),
    ('i=0; while [ $i -lt 3 ]; do i=$((i+1)); L="$L$i"; done; python train.py $L', ["$L123"]),
    ("for ((i=0; i<3; i++)); do A+=($i); done; python train.py ${A[@]}", ["0", "1", "2"]),
    ("python train.py 2>&1 --a 1 > log.txt | tee other.txt", ["--a", "1"]),
    ("mkdir -p x && cd x && nohup python train.py --a 1 &", ["--a", "1"]),
    ("echo python other.py; # python third.py\npython train.py", []),
    ("set -- 1 2; shift; python train.py $1", ["2"]),
    ("bash <<EOF\npython train.py --a 1\nEOF", ["--a", "1"]),
    ("python train.py $'a\\tb' $\"c\"", ["a\tb", "$c"]),
]


@pytest.mark.parametrize(("text", "expected"), WORDS, ids=range(len(WORDS)))
def test_words(text: str, expected: list[str]) -> None:
    """The words of a command after all expansions."""
    assert words(text) == expected


# What only running the script would show keeps its text.
UNKNOWN = [
    ("python train.py --a $(nvidia-smi -L | wc -l)", ["--a", "$(nvidia-smi…)"]),
    ("A=`nproc`; python train.py --a $A", ["--a", "$(nproc)"]),
    ("A=$(nproc --all); python train.py --a $((A / 2))", ["--a", "$((A/2))"]),
    ("python train.py --a $TP --b $1 ${2:-7}", ["--a", "$TP", "--b", "$1", "7"]),
    ("python train.py --a=${DIR}/x $EXTRA", ["--a=$DIR/x"]),
    ("python train.py --a ${X%.*}", ["--a", "${X%.*}"]),
]


@pytest.mark.parametrize(("text", "expected"), UNKNOWN)
def test_unknown(text: str, expected: list[str]) -> None:
    """A value that is not known keeps its text."""
    assert [one.replace("${DIR}", "$DIR") for one in words(text)] == expected


def test_unset_variable_is_named() -> None:
    """What is taken as empty is said."""
    assert command("python train.py $EXTRA").assumed == (
        "$EXTRA is not set in the script; it is taken as empty",
    )


def test_arguments() -> None:
    """The arguments of the script."""
    text = "while [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; *) shift;; esac; done\n"
    assert words(f"{text}python train.py $N", "--n", "5") == ["5"]
    assert words('python train.py $1 "$@" $#', "a", "b c") == ["a", "a", "b c", "2"]


def test_nothing_is_run(tmp_path: Path) -> None:
    """No command, redirection or substitution has an effect."""
    mark = tmp_path / "mark"
    text = f"touch {mark}; A=$(touch {mark}); `touch {mark}`; python train.py > {mark}"
    read_script(text, NamedFiles(folder=tmp_path))
    assert not mark.exists()


def test_environment() -> None:
    """Exported variables, and those in front of the command."""
    found = command("export A=1; B=2; C=3 python train.py; export D=4")
    assert found.environment == {"A": "1", "C": "3"}


def test_condition_that_is_not_known() -> None:
    """It is false, unless nothing would be started."""
    text = "if [ -f x ]; then A=1; else A=2; fi; python train.py $A"
    assert words(text) == ["2"]
    assert "([ -f x ]) is not known; it is taken as false" in command(text).assumed[0]
    # The script would start nothing otherwise.
    assert words("if [ -f x ]; then python train.py 1; fi") == ["1"]


def test_file_that_the_script_writes() -> None:
    """Later commands find the files of here-documents."""
    text = """N=4
cat > $OUT/ds.json <<EOF
{"train_micro_batch_size_per_gpu": $N, "path": "\\$HOME"}
EOF
cat <<'EOF' > plain.yaml
a: $N
EOF
python train.py --deepspeed $OUT/ds.json"""
    files = command(text).files
    data = files.data("$OUT/ds.json")
    assert data == {"train_micro_batch_size_per_gpu": 4, "path": "$HOME"}
    assert files.text("./plain.yaml") == "a: $N\n"
    assert not files.exists("other.yaml")


def test_other_scripts(tmp_path: Path) -> None:
    """Scripts that the script starts or sources."""
    (tmp_path / "env.sh").write_text("A=5\n")
    (tmp_path / "train.sh").write_text("python train.py --a $1 $B\n")
    files = NamedFiles(folder=tmp_path)
    text = 'source "$(dirname "$0")/env.sh"; B=2; export B; bash train.sh $A'
    assert command(text, files=files).words == ("train.py", "--a", "5", "2")
    missing = command("source none.sh; python train.py", files=files)
    assert missing.assumed == ("the script none.sh is not read; there is no such file here",)


def test_cd(tmp_path: Path) -> None:
    """The command's folder."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = command("cd a/b; python train.py", files=NamedFiles(folder=tmp_path))
    assert found.files.folder == tmp_path / "a" / "b"


SLURM = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gres=gpu:h100:8   # all
#SBATCH --ntasks-per-node 8
"""


@pytest.mark.parametrize(
    ("text", "gpus", "nodes"),
    [
        (f"{SLURM}srun python train.py", 32, 4),
        (f"{SLURM}torchrun --nnodes $SLURM_NNODES --nproc_per_node 2 train.py", 8, 4),
        (f"{SLURM}srun bash -c 'python train.py --n $SLURM_NTASKS'", 32, 4),
        ("#SBATCH -N 2 -G 6\nsrun python train.py", 6, 2),
        ("#SBATCH --gpus-per-node=a100:4\npython train.py", 4, 1),
        ("sbatch <<EOF\n#SBATCH --nodes=2\nsrun -N 2 -n 16 sh -c 'python train.py'\nEOF", 16, 2),
        ("N=2; torchrun --nproc-per-node=8 --nnodes $N train.py", 16, 2),
    ],
)
def test_counts(text: str, gpus: int, nodes: int) -> None:
    """GPUs and nodes of Slurm, srun and torchrun."""
    found = command(text)
    assert (found.num_gpus, found.num_nodes) == (gpus, nodes)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("python preprocess.py; torchrun train.py; python eval.py", "train.py"),
        ("vllm serve a & python train.py", "vllm"),
        ("python download.py; python sft.py", "sft.py"),
        ("for m in a b; do python train.py --m $m; done", "train.py"),
    ],
)
def test_main_command(text: str, program: str) -> None:
    """The command that trains or serves, among others."""
    assert command(text).program == program


def test_first_of_several() -> None:
    """The first of several is taken, and it is said."""
    found = command("for m in a b; do python train.py --m $m; done")
    assert found.words[-1] == "a"
    assert found.assumed == ("the script starts 2 such commands; this is the first of them",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ls -l", "starts no tool that is known"),
        ("", "starts no tool that is known"),
        ("if true; then python train.py", "'its end' where 'fi' should be"),
        ("A='x", "line 1 of the shell script opens a quote that is never closed"),
        ("\nA=$(x", "line 2 of the shell script opens a parenthesis that is never closed"),
        ("python train.py )", "has ')' where a command should be"),
        ("accelerate launch --config_file a.yaml train.py", "no files are opened here"),
    ],
)
def test_refused(text: str, sentence: str) -> None:
    """One sentence on what is wrong."""
    with pytest.raises(InputError) as error:
        read_script(text, NO_FILES)
    assert sentence in str(error.value)


def test_a_redirection_on_a_line_of_its_own_is_no_prompt() -> None:
    """A prompt for more lines stands only where the session has prompts."""
    (found,) = read_script("vllm serve a/b \\\n  > a.log 2>&1", NO_FILES)
    assert found.words == ("vllm", "serve", "a/b")
    (found,) = read_script("$ vllm serve a/b \\\n> --port 1", NO_FILES)
    assert found.words == ("vllm", "serve", "a/b", "--port", "1")


def test_the_commands_that_were_seen_are_named() -> None:
    """Where none of them starts a known tool."""
    with pytest.raises(InputError, match=r"\(python -m own\.train\); check its command"):
        read_script("pip install x\npython -m own.train --lr 1", NO_FILES)


def test_a_folder_of_another_machine_is_not_entered(tmp_path: Path) -> None:
    """Files are looked for where the script is, and that is said."""
    found = command("cd /opt/none/LLaMA; python train.py", files=NamedFiles(folder=tmp_path))
    assert found.files.folder == tmp_path
    assert any("it is not on this machine" in one for one in found.assumed)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py --gpus <num_gpus> --b 1", ("--gpus", "<num_gpus>", "--b", "1")),
        ("python train.py --out <YOUR OWN DIR> # x", ("--out", "<YOUR OWN DIR>")),
        ("python train.py /runs/<name>/last --b 1", ("/runs/<name>/last", "--b", "1")),
        ("python train.py --a 1 <in >out", ("--a", "1")),
        ("python train.py --a 1 <in>out", ("--a", "1")),
    ],
)
def test_a_placeholder_is_a_word(line: str, words: tuple[str, ...]) -> None:
    """`<name>` is what a reader shall write, and no file."""
    assert command(line).words[1:] == words


def test_words_that_are_not_given_are_asked_for() -> None:
    """Those that the script itself uses; in their place, not what follows from them."""
    gpt = "torchrun pretrain_gpt.py --num-layers $1 --hidden-size $3"
    (one,) = read_script(gpt, NO_FILES)
    assert one.unsaid == (
        "the script uses $1 to $3, words after its name, and none is given; write them there"
    )
    assert one.unsaid in tools.read_command(one).problems
    assert not any("$" in said and said != one.unsaid for said in tools.read_command(one).problems)
    (given,) = read_script(gpt, NO_FILES, ["2", "", "64"])
    default, function = 'python a.py "${1:-x}"', "f() { echo $1; }; f; python a.py"
    assert [given.unsaid, *(command(text).unsaid for text in (default, function))] == ["", "", ""]


def test_variables_in_front_of_a_script_are_its_own(tmp_path: Path) -> None:
    """As a shell has it, with words after its name."""
    (tmp_path / "s.sh").write_text('vllm serve $MODEL --max-model-len "$1"', encoding="utf-8")
    (found,) = readings_of(["MODEL=qwen2.5-0.5b", "bash", "s.sh", "512"], tmp_path)
    assert found.run["model"] == {"name": "qwen2.5-0.5b"}
    assert found.run["inference"]["max_seq_len"] == 512


@pytest.mark.parametrize(
    ("gres", "gpus"), [("gpu:8", 8), ("gpu:4090:2", 2), ("gpu:4090", 1), ("gpu", 1)]
)
def test_a_number_alone_is_a_count(gres: str, gpus: int) -> None:
    """Unless no node has as many."""
    assert read_allocation(f"#SBATCH --gres={gres}\n").num_gpus == gpus
