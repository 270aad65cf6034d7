// What the page finds in a browser and older compilers do not know; newer ones skip it.
declare var DecompressionStream: new (format: string) => GenericTransformStream & TransformStream;

interface Window {
  Plotly: {
    react(element: HTMLElement, traces: object[], layout: object, config: object): Promise<void>;
  };
}
