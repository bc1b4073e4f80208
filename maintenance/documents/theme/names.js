/* A name for the search, which a screen reader says when it opens. */
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
