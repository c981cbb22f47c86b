#include "lab/faults.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace stet::lab {
namespace {

// A cache whose steps are wrapped.
template <class F>
class SteppingCache final : public ForwardingCache {
 public:
  SteppingCache(std::unique_ptr<Cache> inner, F wrap) : ForwardingCache(std::move(inner)), wrap_(std::move(wrap)) {}
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    auto step = inner_->begin(appends);
    if (!step) return step;
    return wrap_(std::move(*step));
  }

 private:
  F wrap_;
};

template <class F>
Wrap wrap_steps(F wrap) {
  return [wrap = std::move(wrap)](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
    return std::make_unique<SteppingCache<F>>(std::move(cache), wrap);
  };
}

class TellingStep : public ForwardingStep {
 public:
  TellingStep(std::unique_ptr<Step> inner, const Told& model, Told mask)
      : ForwardingStep(std::move(inner)), mask_(std::move(mask)) {
    say(model);
  }

  std::span<const Slice> slices() const noexcept override { return said_; }

  // A model asks for the view before it looks at the slice's position, so what slices() gave out changes now.
  View view(int layer, int slice) const noexcept override {
    if (!asked_) say(mask_);
    asked_ = true;
    return inner_->view(layer, slice);
  }

 private:
  void say(const Told& told) const {
    const auto truth = inner_->slices();
    said_.assign(truth.begin(), truth.end());
    for (Slice& slice : said_) {
      if (told) slice.first = told(slice);
    }
  }

  Told mask_;
  mutable std::vector<Slice> said_;
  mutable bool asked_ = false;
};

}  // namespace

Wrap tell(Told model, Told mask) {
  return wrap_steps([model = std::move(model), mask = std::move(mask)](std::unique_ptr<Step> step) {
    return std::unique_ptr<Step>(std::make_unique<TellingStep>(std::move(step), model, mask));
  });
}

Wrap positions_restart() {
  return tell([](const Slice&) { return Pos{0}; }, {});
}

Wrap square_mask() {
  return tell({}, [](const Slice&) { return Pos{0}; });
}

Wrap naive_slide(Pos limit) {
  return tell([limit](const Slice& s) { return std::min(s.first, std::max<Pos>(0, limit - s.tokens)); }, {});
}

// ---- Rows that are not of the sequence

namespace {

// Of a layer's rows before the longest truncation that is not yet grown over.
struct Tail {
  Pos end = 0;
  std::vector<std::vector<std::uint32_t>> cells;  // by layer
};
using Tails = std::map<std::uint32_t, Tail>;  // by the sequence's index

class StaleStep final : public TellingStep {
 public:
  StaleStep(std::unique_ptr<Step> inner, const Tails& tails)
      : TellingStep(std::move(inner), {}, [&tails](const Slice& s) { return last_seen(tails, s); }), tails_(tails) {}

  View view(int layer, int slice) const noexcept override {
    View view = TellingStep::view(layer, slice);
    const auto found = tails_.find(inner_->slices()[static_cast<std::size_t>(slice)].seq.index);
    if (found == tails_.end() || found->second.end <= view.end()) return view;
    view.cells = found->second.cells[static_cast<std::size_t>(layer)];
    view.count = found->second.end - view.first;
    return view;
  }

 private:
  // The kernel takes what a query sees from its position, so a longer view alone would show nothing: the mask has to
  // believe in the old length too.
  static Pos last_seen(const Tails& tails, const Slice& slice) {
    const auto found = tails.find(slice.seq.index);
    return found == tails.end() ? slice.first : std::max(slice.first, found->second.end - slice.tokens);
  }

  const Tails& tails_;
};

class StaleTailCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;

  Result<void> truncate(Seq seq, Pos len) override {
    const auto length = inner_->length(seq);
    if (!length) return pass(length);
    Tail tail{*length, {}};
    for (std::size_t layer = 0; layer < spec().layers.size(); ++layer) {
      const auto view = inner_->peek(seq, static_cast<int>(layer));
      if (!view) return pass(view);
      tail.cells.emplace_back(view->cells.begin(), view->cells.end());
    }
    auto done = inner_->truncate(seq, len);
    if (!done) return done;
    Tail& known = tails_[seq.index];
    if (tail.end >= known.end) known = std::move(tail);
    if (len == 0) tails_.erase(seq.index);  // begun anew: nothing is seen of it
    return {};
  }
  Result<void> close(Seq seq) override {
    auto done = inner_->close(seq);
    if (done) tails_.erase(seq.index);
    return done;
  }
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    auto step = inner_->begin(appends);
    if (!step) return step;
    return std::make_unique<StaleStep>(std::move(*step), tails_);
  }

 private:
  Tails tails_;
};

template <class C, class... Args>
Wrap wrap_cache(Args... args) {
  return [=](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
    return std::make_unique<C>(std::move(cache), args...);
  };
}

// Who finds all rows of its prompt forks them all, and computes the last token once more, behind itself.
class OffByOneCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;

  Result<Pos> length(Seq seq) const override {
    auto length = inner_->length(seq);
    if (length) *length -= off_by(seq);
    return length;
  }
  Result<void> truncate(Seq seq, Pos len) override { return inner_->truncate(seq, len + off_by(seq)); }
  Result<void> close(Seq seq) override {
    std::erase(off_, seq);
    return inner_->close(seq);
  }
  Result<Seq> fork(Seq seq, Pos upto) override {
    const auto all = length(seq);
    if (!all) return pass(all);
    const bool full = *all == upto + 1;
    auto fork = inner_->fork(seq, upto + (full || off_by(seq) > 0 ? 1 : 0));
    if (fork && (full || off_by(seq) > 0)) off_.push_back(*fork);
    return fork;
  }

 private:
  Pos off_by(Seq seq) const { return std::find(off_.begin(), off_.end(), seq) == off_.end() ? 0 : 1; }
  std::vector<Seq> off_;
};

}  // namespace

Wrap stale_tail() {
  return wrap_cache<StaleTailCache>();
}

Wrap full_hit_off_by_one() {
  return wrap_cache<OffByOneCache>();
}

// ---- Batches

Ids fill_up(Padding side, TokenId pad, Ids prompt, Pos longest) {
  const auto missing = static_cast<std::size_t>(longest) - prompt.size();
  prompt.insert(side == Padding::left ? prompt.begin() : prompt.end(), missing, pad);
  return prompt;
}

Batching padded(Padding side, TokenId pad) {
  return [=](const std::vector<Ids>& sequences, Pos) {
    Schedule s;
    Pos longest = 0;
    const auto prompt_of = [](const Ids& ids) { return std::max<Pos>(1, static_cast<Pos>(ids.size()) / 2); };
    for (const Ids& ids : sequences) {
      s.lengths.push_back(static_cast<Pos>(ids.size()));
      longest = std::max(longest, prompt_of(ids));
    }
    Action prompts;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Pos n = prompt_of(sequences[i]);
      Action::Part part{i, fill_up(side, pad, Ids(sequences[i].begin(), sequences[i].begin() + n), longest), true, {}};
      part.to.assign(static_cast<std::size_t>(longest), -1);
      for (Pos t = 0; t < n; ++t) part.to[static_cast<std::size_t>(side == Padding::left ? longest - n + t : t)] = t;
      // What is taken for the logits behind the prompt is the last row of the rectangle.
      part.to[static_cast<std::size_t>(n - 1)] =
          longest == n || side == Padding::left ? part.to[static_cast<std::size_t>(n - 1)] : -1;
      part.to.back() = n - 1;
      prompts.append.push_back(std::move(part));
    }
    s.actions.push_back(std::move(prompts));
    for (Pos t = 0;; ++t) {
      Action action;
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        const Pos at = prompt_of(sequences[i]) + t;
        if (at < s.lengths[i]) action.append.push_back({i, {sequences[i][static_cast<std::size_t>(at)]}, true, {at}});
      }
      if (action.append.empty()) return s;
      s.actions.push_back(std::move(action));
    }
  };
}

}  // namespace stet::lab
