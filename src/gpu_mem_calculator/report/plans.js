/* A point or a number opens its plan; “Compare” keeps one open beside the next. Listens on the
   document, so that it also serves plans that are put into the page later. */

(() => {
  const all = (root, what) => [...root.querySelectorAll(what)];
  const left = (point) => point.querySelector(".hit").getBoundingClientRect().x;

  /** Show a plan, beside the one that is kept. */
  function open(root, rank) {
    root.dataset.open = rank;
    const kept = root.dataset.kept;
    const shown = [...new Set([kept, rank].filter(Boolean))];
    for (const panel of all(root, ".plan")) {
      panel.hidden = !shown.includes(panel.dataset.rank);
      panel.style.order = panel.dataset.rank === kept ? 0 : 1;
    }
    for (const button of all(root, "[data-plan]")) {
      const own = shown.includes(button.dataset.plan);
      button.setAttribute("aria-pressed", own);
      if (button.matches(".point")) button.setAttribute("tabindex", button.dataset.plan === rank ? 0 : -1);
    }
    for (const button of all(root, "[data-keep]")) {
      const own = button.dataset.keep === kept;
      button.setAttribute("aria-pressed", own);
      button.textContent = own ? "Stop comparing" : "Compare";
    }
    mark(root, all(root, ".plan").filter((panel) => !panel.hidden));
    say(root, kept, rank);
    root.dispatchEvent(new CustomEvent("plan-opened", { bubbles: true, detail: { open: rank, kept } }));
  }

  /** Mark the figures in which two plans differ. */
  function mark(root, panels) {
    for (const one of all(root, ".differs")) one.classList.remove("differs");
    if (panels.length < 2) return;
    const values = panels.map((panel) => new Set(all(panel, "[data-compare]").map((one) => one.dataset.compare)));
    panels.forEach((panel, i) => {
      for (const one of all(panel, "[data-compare]")) {
        if (!values[1 - i].has(one.dataset.compare)) one.classList.add("differs");
      }
    });
  }

  function say(root, kept, rank) {
    const words = !kept ? `Plan ${rank} is open.`
      : kept === rank ? `Plan ${kept} stays open: choose another one to compare it with.`
      : `Plan ${kept} beside plan ${rank}; what differs is marked.`;
    root.querySelector("[data-says]").textContent = words;
  }

  function keep(root, rank) {
    if (root.dataset.kept === rank) delete root.dataset.kept;
    else root.dataset.kept = rank;
    open(root, rank);
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: press Ctrl+C";
    }
  }

  /** The point whose middle is nearest to the pointer: points may cover each other. */
  function nearest(event) {
    const apart = (point) => {
      const box = point.querySelector(".hit").getBoundingClientRect();
      return Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
    };
    return all(event.target.closest(".front"), ".point").sort((a, b) => apart(a) - apart(b))[0];
  }

  // another script opens a plan, and keeps one beside it
  document.addEventListener("open-plan", ({ target, detail }) => {
    if (detail.kept) target.dataset.kept = detail.kept;
    open(target, detail.open);
  });

  document.addEventListener("click", (event) => {
    const hit = event.target.closest?.("[data-plan], [data-keep], [data-copy]");
    const button = hit?.matches(".point") && event.detail ? nearest(event) : hit;
    const root = button?.closest(".plans");
    if (!root) return;
    if (button.dataset.plan) {
      open(root, button.dataset.plan);
      if (button.matches(".rank")) root.querySelector(`.plan[data-rank="${button.dataset.plan}"]`).scrollIntoView({ block: "nearest" });
    }
    else if (button.dataset.keep) keep(root, button.dataset.keep);
    else copy(button);
  });

  document.addEventListener("keydown", (event) => {
    const point = event.target.closest?.(".plans .point");
    if (!point) return;
    const root = point.closest(".plans");
    if (event.key === "Enter" || event.key === " ") open(root, point.dataset.plan);
    else {
      const points = all(root, ".point").sort((a, b) => left(a) - left(b));
      const place = points.indexOf(point);
      const next = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1,
                     Home: 0, End: points.length - 1 }[event.key];
      if (next === undefined) return;
      const other = points[Math.min(points.length - 1, Math.max(0, next))];
      open(root, other.dataset.plan);
      other.focus();
    }
    event.preventDefault();
  });
})();
