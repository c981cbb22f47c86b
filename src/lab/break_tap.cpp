// Reads what attention puts out, without a word of it in models or kernels: the views of a wrapped step carry a layout
// that knows a tape, and the kernel of a target of its own writes to it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/bugs.hpp"

namespace stet::lab {
namespace {

struct Tape {
  std::vector<double> out;  // of the last row: [query head][v_dim]; empty: nobody listens yet
};

// What the kernel gets where it expects a layout.
struct Tapped : CellLayout {
  Tape* tape = nullptr;  // null: this layer is not listened to
};

template <class T>
const kernels::Table<T>& ref() {
  if constexpr (sizeof(T) == sizeof(double)) {
    return kernels::ref_f64();
  } else {
    return kernels::ref_f32();
  }
}

template <class T>
void listen(const kernels::Attend<T>& op, kernels::Range rows, kernels::Range kv_heads) {
  const auto& layout = static_cast<const Tapped&>(*op.view.layout);
  if (layout.tape == nullptr || layout.tape->out.empty() || rows.end != op.tokens) return;
  const auto dim = static_cast<std::size_t>(layout.v_dim);
  const int group = op.heads / layout.kv_heads;
  for (int head = kv_heads.begin * group; head < kv_heads.end * group; ++head) {
    const std::size_t at = static_cast<std::size_t>(head) * dim;
    const T* out = op.out + static_cast<std::size_t>(op.tokens - 1) * op.out_stride + at;
    std::copy_n(out, dim, layout.tape->out.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

template <class T>
void attend(const kernels::Attend<T>& op, kernels::Range rows, kernels::Range kv_heads) {
  ref<T>().attend(op, rows, kv_heads);
  listen(op, rows, kv_heads);
}

// Where a context is cut into blocks, this comes last.
template <class T>
void merge_blocks(const kernels::Attend<T>& op, kernels::Range rows, int kv_head,
                  const kernels::PartialBlocks<T>& from) {
  ref<T>().merge_blocks(op, rows, kv_head, from);
  listen(op, rows, {kv_head, kv_head + 1});
}

class TapStep final : public ForwardingStep {
 public:
  TapStep(std::unique_ptr<Step> inner, std::size_t layers, Tape* tape)
      : ForwardingStep(std::move(inner)), layouts_(layers), tape_(tape) {}
  View view(int layer, int slice) const noexcept override {
    View view = inner_->view(layer, slice);
    Tapped& layout = layouts_[static_cast<std::size_t>(layer)];
    static_cast<CellLayout&>(layout) = *view.layout;
    layout.tape = layer == 0 ? tape_ : nullptr;
    view.layout = &layout;
    return view;
  }

 private:
  mutable std::vector<Tapped> layouts_;
  Tape* tape_;
};

class TapCache final : public ForwardingCache {
 public:
  TapCache(std::unique_ptr<Cache> inner, Tape* tape) : ForwardingCache(std::move(inner)), tape_(tape) {}
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    auto step = inner_->begin(appends);
    if (!step) return step;
    return std::make_unique<TapStep>(std::move(*step), spec().layers.size(), tape_);
  }

 private:
  Tape* tape_;
};

}  // namespace

Result<Attention> attention_of(const model::Model& model, const Ids& ids, const Wrap& wrap) {
  Tape tape;
  const kernels::Target& fastest = kernels::targets().front();
  kernels::Table<float> f32 = *fastest.f32;
  kernels::Table<double> f64 = *fastest.f64;
  f32.attend = attend<float>;
  f64.attend = attend<double>;
  f32.merge_blocks = merge_blocks<float>;
  f64.merge_blocks = merge_blocks<double>;
  const kernels::Target target{"listened to", "listened to", &f32, &f64};
  Conditions conditions;
  conditions.target = &target;
  conditions.wrap = [&](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
    if (wrap) {
      auto wrapped = wrap(std::move(cache));
      if (!wrapped) return wrapped;
      cache = std::move(*wrapped);
    }
    return std::make_unique<TapCache>(std::move(cache), &tape);
  };
  const auto n = static_cast<Pos>(ids.size());
  auto drive = Drive::make(model, conditions, {n, n, 1});
  if (!drive) return pass(drive);
  auto seq = drive->cache().open();
  if (!seq) return pass(seq);
  if (auto ok = drive->feed(*seq, ids, n - 1, n, nullptr); !ok) return pass(ok);
  const int heads = model.config().heads;
  const auto dim = static_cast<std::size_t>(conditions.cache.spec(model).layers.front().v_dim);
  tape.out.assign(static_cast<std::size_t>(heads) * dim, std::numeric_limits<double>::quiet_NaN());
  if (auto ok = drive->feed(*seq, ids, n, 1, nullptr); !ok) return pass(ok);
  if (!std::all_of(tape.out.begin(), tape.out.end(), [](double x) { return std::isfinite(x); })) {
    return fail(Code::corrupt, "attention of layer 0 was not heard for every head, or is not finite");
  }
  const auto view = drive->cache().peek(*seq, 0);
  if (!view) return pass(view);
  Attention attention{tape.out, {}};
  std::vector<double> value(dim);
  for (int head = 0; head < heads; ++head) {
    if (auto ok = read_value(*view, head / (heads / view->layout->kv_heads), 0, value); !ok) return pass(ok);
    attention.first_value.insert(attention.first_value.end(), value.begin(), value.end());
  }
  return attention;
}

}  // namespace stet::lab
