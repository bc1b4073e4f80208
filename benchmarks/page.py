"""How soon the page shows a change: from the slider's move to the frame with the new picture.

Beside it, in the same page and the same run, what a browser and a service need at least: a bare
round trip to /healthz, then the next frame. The ratio says what the product adds to that.

python -m benchmarks.page [--moves N]
"""

from __future__ import annotations

import argparse
import statistics

from playwright.sync_api import sync_playwright
from tests.browser.chrome import Visit, launched

from .soak import free_port, started

SETUPS = {
    "gpt2, DDP": "train?model.name=gpt2&hardware.num_gpus=8&engine.type=pytorch_ddp"
    "&training.batch_size=4&training.seq_len=512",
    "Llama 3 8B, FSDP": "train?model.name=llama3-8b&hardware.num_gpus=8&engine.type=fsdp"
    "&training.batch_size=4&training.seq_len=4096",
    "Llama 3 70B, Megatron": "train?model.name=llama3-70b&hardware.num_gpus=64&engine.type=megatron"
    "&parallelism.tensor_parallel_size=8&parallelism.pipeline_parallel_size=4"
    "&training.batch_size=4&training.seq_len=4096",
    "Llama 3 8B, vLLM": "serve?model.name=llama3-8b&inference.engine=vllm&inference.batch_size=4",
}
BARE = """async () => {
  const start = performance.now();
  await (await fetch("/healthz")).json();
  await new Promise(requestAnimationFrame);
  const channel = new MessageChannel();
  await new Promise((done) => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
  return performance.now() - start;
}"""
# A move, and the milliseconds until its frame; the next one waits for all that follows from it.
MOVE = """async (at) => {
  const slider = document.querySelector("[data-path$='.batch_size'] input[type=range]");
  const before = performance.getEntriesByName("redraw").length;
  slider.value = String(at);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  while (performance.getEntriesByName("redraw").length === before) {
    await new Promise((done) => setTimeout(done, 5));
  }
  const took = performance.getEntriesByName("redraw").at(-1).duration;
  await new Promise((done) => setTimeout(done, 400));
  return took;
}"""


def said(times: list[float]) -> str:
    """Median and ninth decile."""
    tenth = statistics.quantiles(times, n=10)[-1]
    return f"median {statistics.median(times):5.1f} ms, p90 {tenth:5.1f} ms"


def main() -> None:
    """Every set-up, beside the bare round trip of its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=40)
    moves = parser.parse_args().moves
    port = free_port()
    server = started(port)
    try:
        with sync_playwright() as playwright:
            browser = launched(playwright)
            for name, link in SETUPS.items():
                visit = Visit(browser.new_page(), f"http://127.0.0.1:{port}")
                page = visit.open(f"/#{link}")
                bare, took = [], []
                for number in range(moves + 4):
                    bare.append(page.evaluate(BARE))
                    took.append(page.evaluate(MOVE, 1 + number % 5))
                bare, took = bare[4:], took[4:]  # without the first, which warm up
                ratio = statistics.median(took) / statistics.median(bare)
                print(
                    f"{name:<22} change to frame: {said(took)}   "
                    f"bare: {said(bare)}   ratio {ratio:.1f}"
                )
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
