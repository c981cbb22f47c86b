// Spreads one kernel call over the threads of a pool. The cut is free: no result depends on it.
#pragma once

#include <span>

#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"

namespace stet::kernels {

template <class T>
void run_matmul(base::ThreadPool& pool, const Table<T>& table, const Matmul<T>& op, int rows);

template <class T>
void run_layer_norm(base::ThreadPool& pool, const Table<T>& table, const LayerNorm<T>& op, int rows);

template <class T>
void run_activate(base::ThreadPool& pool, const Table<T>& table, Activation activation, std::span<T> x);

/// All slices of a step in one parallel region.
template <class T>
void run_attend(base::ThreadPool& pool, const Table<T>& table, std::span<const Attend<T>> slices);

}  // namespace stet::kernels
