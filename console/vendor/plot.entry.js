// Curves over time.
export { default as Plot } from "uplot";
