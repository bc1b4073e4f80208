/* Which control a sentence of the service is about. It begins with the key: training.batch_size=0 must be … */

const MOST = 80; // characters of a reason

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

/** Why a choice is refused, in a few words: a sentence without the key that it is a choice of. */
export function reason(sentence, path) {
  const rest = keyOf(sentence) === path ? sentence.replace(/^[\w.]+(=('[^']*'|\S+?))?[:,]? +(?=\S)/, "") : sentence;
  return rest.length > MOST ? `${rest.slice(0, MOST)}…` : rest;
}
