/** The public face of Vitrine. */
export { assetPath } from './host/assets.ts'
