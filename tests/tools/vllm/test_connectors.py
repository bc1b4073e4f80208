"""KV connectors: where their sizes stand, and what stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError

from .test_read import read, section

LMCACHE = '--kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'


def test_lmcache_is_read_from_variables_and_its_file(tmp_path: Path) -> None:
    """A variable wins over the file that LMCACHE_CONFIG_FILE names."""
    assert section(LMCACHE, LMCACHE_MAX_LOCAL_CPU_SIZE="60.5") == {"lmcache_size": 60.5}
    (tmp_path / "c.yaml").write_text("local_cpu: true\nmax_local_cpu_size: 40\nchunk_size: 256\n")
    there = {"LMCACHE_CONFIG_FILE": "c.yaml"}
    found = read(LMCACHE, tmp_path, **there)
    assert found.run["inference"]["lmcache_size"] == 40
    assert not found.limits
    both = read(LMCACHE, tmp_path, **there, LMCACHE_MAX_LOCAL_CPU_SIZE="8")
    assert both.run["inference"]["lmcache_size"] == 8
    (tmp_path / "c.yaml").write_text("[1]")
    with pytest.raises(InputError, match="must be keys and values"):
        read(LMCACHE, tmp_path, **there)


def test_other_buffers_are_open() -> None:
    """LMCache's layers one by one and longer chunks, and other connectors."""
    for name, value in (("LMCACHE_USE_LAYERWISE", "True"), ("LMCACHE_CHUNK_SIZE", "1024")):
        (limit,) = read(LMCACHE, **{name: value}).limits
        assert limit.key.startswith(name)
        assert limit.could == "more"
    assert not read(LMCACHE, LMCACHE_CHUNK_SIZE="128", LMCACHE_LOCAL_CPU="True").limits
    other = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    (limit,) = read(other).limits
    assert "NixlConnector" in limit.key
    with pytest.raises(InputError, match="must be an object"):
        read(LMCACHE.replace('"kv_role":"kv_both"', '"kv_connector_extra_config":1'))
