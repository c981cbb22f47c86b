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
void run_matmul(base::ThreadPool& pool, const Table<T>& table, const Matmul<T>& op, int rows) {
  const std::size_t row_tiles = tiles(rows, kRowTile);
  // Rows are the inner index: neighbouring tasks share a panel.
  pool.run(row_tiles * static_cast<std::size_t>(op.w->panels()), [&](std::size_t i) {
    table.matmul(op, tile(i % row_tiles, kRowTile, rows), tile(i / row_tiles, 1, op.w->panels()));
  });
}

template <class T>
void run_layer_norm(base::ThreadPool& pool, const Table<T>& table, const LayerNorm<T>& op, int rows) {
  pool.run(tiles(rows, kQueryTile), [&](std::size_t i) { table.layer_norm(op, tile(i, kQueryTile, rows)); });
}

template <class T>
void run_activate(base::ThreadPool& pool, const Table<T>& table, Activation activation, std::span<T> x) {
  pool.run((x.size() + kActivateTile - 1) / kActivateTile, [&](std::size_t i) {
    table.activate(activation, x.subspan(i * kActivateTile, std::min(kActivateTile, x.size() - i * kActivateTile)));
  });
}

template <class T>
void run_attend(base::ThreadPool& pool, const Table<T>& table, std::span<const Attend<T>> slices) {
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
  pool.run(parts.size(), [&](std::size_t i) { table.attend(*parts[i].op, parts[i].rows, parts[i].kv_heads); });
}

template void run_matmul(base::ThreadPool&, const Table<float>&, const Matmul<float>&, int);
template void run_matmul(base::ThreadPool&, const Table<double>&, const Matmul<double>&, int);
template void run_layer_norm(base::ThreadPool&, const Table<float>&, const LayerNorm<float>&, int);
template void run_layer_norm(base::ThreadPool&, const Table<double>&, const LayerNorm<double>&, int);
template void run_activate(base::ThreadPool&, const Table<float>&, Activation, std::span<float>);
template void run_activate(base::ThreadPool&, const Table<double>&, Activation, std::span<double>);
template void run_attend(base::ThreadPool&, const Table<float>&, std::span<const Attend<float>>);
template void run_attend(base::ThreadPool&, const Table<double>&, std::span<const Attend<double>>);

}  // namespace stet::kernels
