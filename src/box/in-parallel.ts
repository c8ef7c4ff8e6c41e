/** Does the same to every item, a few at a time. After a failure nothing more is begun, and what is under way is waited for. */
export async function inParallel<T>(
  items: readonly T[],
  atATime: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  let next = 0
  const failures: unknown[] = []
  const one = async (): Promise<void> => {
    while (next < items.length && failures.length === 0) await work(items[next++]!).catch(error => failures.push(error))
  }
  await Promise.all(Array.from({ length: Math.min(atATime, items.length) }, one))
  if (failures.length > 0) throw failures[0]
}
