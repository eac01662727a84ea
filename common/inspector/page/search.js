// Looking things up by time, in lists that only grow at their end.

// The number of entries whose key is not above this value. Keys ascend.
export function upTo(list, value, key) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
