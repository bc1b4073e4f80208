"""Fields, flags and variables in Go, by their text."""

from __future__ import annotations

from maintenance.releases import go

TYPES = """
type Options struct {
    Runner
    NumKeep     int      `json:"num_keep,omitempty"`
    Temperature float32  `json:"temperature,omitempty"`
    Stop        []string `json:"stop,omitempty"`
}

type Runner struct {
    NumCtx  int   `json:"num_ctx,omitempty"`
    MainGPU *int  `json:"main_gpu,omitempty"`
    UseMMap *bool `json:"use_mmap,omitempty"`
    F16KV   bool  `json:"f16_kv,omitempty"`
}

func DefaultOptions() Options {
    return Options{
        NumKeep:     4,
        Temperature: 0.8,
        Runner: Runner{
            NumCtx:  int(envconfig.ContextLength()),
            F16KV:   true, // halves
            UseMMap: nil,
        },
    }
}
"""
FLAGS = """
    runCmd.Flags().String("keepalive", "", "how long")
    runCmd.Flags().Bool("verbose", false, "timings")
    createCmd.Flags().StringP("file", "f", "Modelfile", "its name")
    runCmd.Flags().Int("dimensions", 0, "of an embedding")
"""
VARIABLES = """
    ret := map[string]EnvVar{
        "OLLAMA_DEBUG": {"OLLAMA_DEBUG", LogLevel(), "more"},
        "HTTP_PROXY": {"HTTP_PROXY", String(), "a proxy"},
    }
    ret["OLLAMA_LLM_LIBRARY"] = EnvVar{"OLLAMA_LLM_LIBRARY", LLMLibrary(), "a library"}
"""


def test_a_field_has_the_default_of_its_struct() -> None:
    """A plain value, the zero of its type, none for a pointer; code where it is a call."""
    assert go.fields(TYPES, "Options") == {
        "num_keep": {"default": 4, "type": "int"},
        "temperature": {"default": 0.8, "type": "float"},
        "stop": {"default": None, "type": "list"},
    }
    assert go.fields(TYPES, "Runner") == {
        "num_ctx": {"computed": "int(envconfig.ContextLength())", "type": "int"},
        "main_gpu": {"default": None, "type": "int | None"},
        "use_mmap": {"default": None, "type": "bool | None"},
        "f16_kv": {"default": True, "type": "bool"},
    }


def test_flags_are_those_of_one_command() -> None:
    """With a letter or without."""
    assert go.flags(FLAGS, "createCmd") == {"file": {"default": "Modelfile", "type": "str"}}
    assert go.flags(FLAGS, "runCmd") == {
        "keepalive": {"default": "", "type": "str"},
        "verbose": {"default": False, "type": "bool", "form": "flag"},
        "dimensions": {"default": 0, "type": "int"},
    }


def test_variables_are_ollamas_own() -> None:
    """Code reads each; others of the map are not its own."""
    assert [*go.variables(VARIABLES)] == ["OLLAMA_DEBUG", "OLLAMA_LLM_LIBRARY"]
