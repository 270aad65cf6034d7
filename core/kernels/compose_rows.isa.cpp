// Attention by blocks of rows for one instruction set: keys, or features, lie in vector lanes.
#include "core/kernels/compose_block.h"
#include "core/kernels/vector_team.h"

namespace headlab::CPU_CAPABILITY {

// The map of a problem.
template <class T>
struct PointedMap {
  using Lanes = VectorLanes<T>;
  const RowFunctions<T>& f;

  void weigh(const Row<Lanes>& row, T number, T* saved) const {
    f.weigh(row.z, row.n, number, saved);
  }
  void again(const Row<Lanes>& row, T number, const T* saved, T* a) const {
    f.again(row.z, row.n, number, saved, a);
  }
  T backward(const Row<Lanes>& row, const T* trace, const T* a, T number, const T* saved) const {
    return f.backward(row.z, row.n, trace, a, number, saved);
  }
};

template <class T>
int64_t compose_scratch(const ComposeProblem<T>& p) {
  return block_room<VectorTeam<T>>(p, backward_maps(p)) + p.group * (p.d + p.v.size[3]) * p.padded;
}
template <class T>
T* panels(const ComposeProblem<T>& p, T* room) {
  return room + block_room<VectorTeam<T>>(p, backward_maps(p));
}

template <class T>
ComposeKernels<T> compose_kernels_of() {
  return {[](const ComposeProblem<T>& p, int64_t task, T* room) {
            forward_task(VectorTeam<T>(), p, PointedMap<T>{p.row}, task, room, panels(p, room));
          },
          [](const ComposeProblem<T>& p, int64_t task, T* room) {
            backward_task(VectorTeam<T>(), p, PointedMap<T>{p.row}, task, room, panels(p, room));
          },
          compose_scratch<T>};
}
OfTypes<ComposeKernels> compose_kernels() {
  return {compose_kernels_of<float>(), compose_kernels_of<double>()};
}

RowMap softmax_rows() { return row_map<SoftmaxRow>(); }

}  // namespace headlab::CPU_CAPABILITY
