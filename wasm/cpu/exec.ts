/** What run.ts calls, in one name space. */
export * from './exec-integer'
export * from './exec-atomic'
export * from './exec-stack'
export * from './exec-string'
export * from './exec-misc'
export * from './exec-system'
