#include "kernels/run.hpp"

#include <algorithm>
#include <vector>

namespace stet::kernels {
namespace {

constexpr int kRowTile = 32;  // rows that reuse a panel while it is in the cache
constexpr int kQueryTile = 16;
constexpr std::size_t kActivateTile = 4096;

Range tile(std::size_t index, int size, int end) {
  const int begin = static_cast<int>(index) * size;
  return {begin, std::min(begin + size, end)};
}

std::size_t tiles(int n, int size) {
  return static_cast<std::size_t>((n + size - 1) / size);
}

}  // namespace

template <class T>
void run_matmul(const Compute& on, const Matmul<T>& op, int rows) {
  const std::size_t row_tiles = tiles(rows, kRowTile);
  // Rows are the inner index: neighbouring tasks share a panel.
  on.pool->run(row_tiles * static_cast<std::size_t>(op.w->panels()), [&](std::size_t i) {
    on.target->table<T>().matmul(op, tile(i % row_tiles, kRowTile, rows), tile(i / row_tiles, 1, op.w->panels()));
  });
}

template <class T>
void run_layer_norm(const Compute& on, const LayerNorm<T>& op, int rows) {
  on.pool->run(tiles(rows, kQueryTile),
               [&](std::size_t i) { on.target->table<T>().layer_norm(op, tile(i, kQueryTile, rows)); });
}

template <class T>
void run_activate(const Compute& on, Activation activation, std::span<T> x) {
  on.pool->run((x.size() + kActivateTile - 1) / kActivateTile, [&](std::size_t i) {
    on.target->table<T>().activate(activation,
                                   x.subspan(i * kActivateTile, std::min(kActivateTile, x.size() - i * kActivateTile)));
  });
}

template <class T>
void run_attend(const Compute& on, std::span<const Attend<T>> slices) {
  struct Part {
    const Attend<T>* op;
    Range rows, kv_heads;
  };
  std::vector<Part> parts;
  for (const auto& op : slices) {
    for (std::size_t t = 0; t < tiles(op.tokens, kQueryTile); ++t) {
      for (int h = 0; h < op.view.layout->kv_heads; ++h)
        parts.push_back({&op, tile(t, kQueryTile, op.tokens), {h, h + 1}});
    }
  }
  on.pool->run(parts.size(),
               [&](std::size_t i) { on.target->table<T>().attend(*parts[i].op, parts[i].rows, parts[i].kv_heads); });
}

template void run_matmul(const Compute&, const Matmul<float>&, int);
template void run_matmul(const Compute&, const Matmul<double>&, int);
template void run_layer_norm(const Compute&, const LayerNorm<float>&, int);
template void run_layer_norm(const Compute&, const LayerNorm<double>&, int);
template void run_activate(const Compute&, Activation, std::span<float>);
template void run_activate(const Compute&, Activation, std::span<double>);
template void run_attend(const Compute&, std::span<const Attend<float>>);
template void run_attend(const Compute&, std::span<const Attend<double>>);

}  // namespace stet::kernels
