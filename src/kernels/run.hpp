// Spreads one kernel call over the threads of a pool. The cut is free: no result depends on it.
#pragma once

#include <functional>
#include <span>

#include "base/buffer.hpp"
#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"

namespace stet::kernels {

/// Attention that holds whole rows of scores, of all heads and as far as they are visible, where it usually holds one
/// block of a few: what loops do that write softmax(QK) as three operations. The bits are the same.
struct ScoreRows {
  int rows = 0;          // queries of a sequence whose scores are held at once; 0: all
  base::Buffer memory;   // grows in large steps, as lengths do by one; it also holds blocks' results until they are
                         // merged
  std::size_t used = 0;  // of it, by the step that used most
  bool refused = false;  // the system refused to let it grow, and a step went block by block
};

/// Seconds that steps spent, by what for. Time elsewhere is that of the caller's clock less these.
struct Profile {
  double weights_s = 0, head_s = 0, attention_s = 0;  // attention: storing keys and values included
};

/// What a calculation runs on.
struct Compute {
  base::ThreadPool* pool = nullptr;
  const Target* target = nullptr;
  ScoreRows* scores = nullptr;  // null: block by block
  Profile* profile = nullptr;   // null: not wanted
};

/// Bytes that run_matmul needs for its activations: 0 but for int8 and int4.
std::size_t quantized_bytes(DType weights, int rows, int in) noexcept;

/// op.quantized is made in `scratch` where the weights need it; the op's own is ignored. False: an activation was not
/// finite, which int8 and int4 cannot express, and y is unspecified.
template <class T>
bool run_matmul(const Compute& on, const Matmul<T>& op, int rows, std::byte* scratch);

/// x += addend (null: nothing), then op.y = the LayerNorm of x, both row by row in one region. Rows of x and addend are
/// op.x_stride apart; op.x is ignored. y may be x or addend.
template <class T>
void run_add_layer_norm(const Compute& on, const T* addend, T* x, const LayerNorm<T>& op, int rows);

template <class T>
void run_activate(const Compute& on, Activation activation, std::span<T> x);

template <class T>
void run_rotate(const Compute& on, const Rotate<T>& op, int rows);

/// Rows of gate | up, `inner` each: gate = activation(gate) x up.
template <class T>
void run_gate(const Compute& on, Activation activation, T* rows_of_both, int inner, int rows);

/// First store(head) for each KV head, from any thread, which is to write the rows that the head's queries read; then
/// all slices of a step. In one parallel region where the step has few tokens.
template <class T>
void run_attend(const Compute& on, int kv_heads, const std::function<void(int)>& store,
                std::span<const Attend<T>> slices);

}  // namespace stet::kernels
