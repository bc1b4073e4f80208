/* Which control a sentence of the service is about. It begins with the key: training.batch_size=0 must be … */

/** The key that a sentence begins with, or an empty text. */
export function keyOf(sentence) {
  return sentence.match(/^[a-z_]+(\.[a-z_0-9]+)+/)?.[0] ?? "";
}

/** Sentences by the path of the control they belong under; the others under an empty path. */
export function assigned(sentences, paths) {
  const found = new Map();
  for (const one of sentences) {
    const key = keyOf(one);
    const own = paths.filter((path) => key === path || key.startsWith(`${path}.`));
    const path = own.sort((a, b) => b.length - a.length)[0] ?? "";
    found.set(path, [...(found.get(path) ?? []), one]);
  }
  return found;
}
