#include "lab/flips.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/thread_pool.hpp"
#include "engine/loaded.hpp"
#include "lab/eval_reader.hpp"
#include "sample/sampler.hpp"

namespace stet::lab {
namespace {

constexpr int kSteps = 100;

struct Work {
  std::vector<TokenId> prompt;
  int steps = 0;
  base::ThreadPool* pool = nullptr;
  const EvalCallbacks* callbacks = nullptr;
  const Wrap* wrap = nullptr;

  kernels::Compute on() const { return {pool, &kernels::targets().front()}; }
  Result<void> go(const std::string& name, int step) const {
    if (callbacks->keep_going && !callbacks->keep_going()) return fail(Code::interrupted, "interrupted");
    if (callbacks->on_progress) callbacks->on_progress(fmt::format("{}: step {} of {}", name, step, steps));
    return {};
  }
};

// What f32 said at each step.
struct Reference {
  std::vector<TokenId> ids;                 // the prompt, and what was made
  std::vector<std::vector<double>> logits;  // of each step
  double largest = 0;                       // |logit|
};

// Reads ids [from, to) in chunks; the logits of the last one stay in row 0.
Result<void> read_all(const Work& work, EvalReader& reader, std::span<const TokenId> ids) {
  for (std::size_t at = 0; at < ids.size(); at += kEvalChunk) {
    if (work.callbacks->keep_going && !work.callbacks->keep_going()) return fail(Code::interrupted, "interrupted");
    if (auto ok = reader.read(work.on(), ids.subspan(at, std::min<std::size_t>(kEvalChunk, ids.size() - at)), true);
        !ok)
      return ok;
  }
  return {};
}

Result<std::vector<double>> finite_row(const EvalReader& reader, const std::string& name, int step) {
  std::vector<double> row = reader.row(0);
  if (std::all_of(row.begin(), row.end(), [](double v) { return std::isfinite(v); })) return row;
  return fail(Code::corrupt,
              fmt::format("{}: the logits of step {} are not finite: nothing can be said about them", name, step + 1));
}

Pos longest(const Work& work) {
  return static_cast<Pos>(work.prompt.size()) + work.steps;
}

Result<Reference> reference_of(const Work& work, const EvalSubject& subject) {
  auto reader = EvalReader::make(subject, longest(work));
  if (!reader) return pass(reader);
  Reference made{work.prompt, {}, 0};
  if (auto ok = read_all(work, *reader, work.prompt); !ok) return pass(ok);
  for (int step = 0; step < work.steps; ++step) {
    if (auto ok = work.go(subject.name, step); !ok) return pass(ok);
    if (step > 0) {
      if (auto ok = reader->read(work.on(), {&made.ids.back(), 1}); !ok) return pass(ok);
    }
    auto row = finite_row(*reader, subject.name, step);
    if (!row) return pass(row);
    for (const double v : *row) made.largest = std::max(made.largest, std::abs(v));
    made.ids.push_back(sample::most_likely(std::span<const double>(*row)));
    made.logits.push_back(std::move(*row));
  }
  return made;
}

// Values that differ in any bit.
std::size_t differing(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t element) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < a.size(); at += element) count += std::memcmp(&a[at], &b[at], element) == 0 ? 0 : 1;
  return count;
}

void add_step(FlipRow& row, const Reference& reference, const std::vector<double>& logits, int step) {
  const std::vector<double>& expected = reference.logits[static_cast<std::size_t>(step)];
  double distance = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) distance = std::max(distance, std::abs(logits[i] - expected[i]));
  row.distances.push_back(distance);
  const TokenId was = sample::most_likely(std::span(expected)), is = sample::most_likely(std::span(logits));
  if (was == is) return;
  ++row.flips;
  if (row.first) return;
  const double margin = expected[static_cast<std::size_t>(was)] - expected[static_cast<std::size_t>(is)];
  row.first = Flip{step + 1, was, is, {}, {}, margin};
}

// The subject reads what f32 made, once token by token from its cache and once each prefix anew.
Result<FlipRow> row_of(const Work& work, const Reference& reference, const EvalSubject& subject) {
  auto cached = EvalReader::make(subject, longest(work), *work.wrap), anew = EvalReader::make(subject, longest(work));
  if (!cached) return pass(cached);
  if (!anew) return pass(anew);
  FlipRow row;
  row.dtype = subject.model->weights();
  row.kv = subject.kv;
  const std::size_t prompt = work.prompt.size(), element = size_of(subject.model->dtype());
  const std::span<const TokenId> ids = reference.ids;
  if (auto ok = read_all(work, *cached, work.prompt); !ok) return pass(ok);
  for (int step = 0; step < work.steps; ++step) {
    const std::size_t length = prompt + static_cast<std::size_t>(step);
    if (auto ok = work.go(subject.name, step); !ok) return pass(ok);
    if (step > 0) {
      if (auto ok = cached->read(work.on(), ids.subspan(length - 1, 1)); !ok) return pass(ok);
    }
    if (auto ok = anew->rewind(); !ok) return pass(ok);
    if (auto ok = read_all(work, *anew, ids.first(length)); !ok) return pass(ok);
    row.compared += cached->bytes(0).size() / element;
    row.differing += differing(cached->bytes(0), anew->bytes(0), element);
    const auto logits = finite_row(*cached, subject.name, step);
    if (!logits) return pass(logits);
    add_step(row, reference, *logits, step);
  }
  for (const double d : row.distances) {
    row.largest = std::max(row.largest, d);
    row.mean += d / work.steps;
  }
  row.relative = reference.largest > 0 ? row.largest / reference.largest : 0;
  return row;
}

// How much of the input is the prompt, and how many steps fit behind it.
Result<void> set_sizes(const FlipOptions& options, Pos context, Work& work) {
  const auto given = static_cast<Pos>(work.prompt.size());
  if (given == 0) return fail(Code::invalid_argument, "the input has no token: at least one is needed to go on from");
  const Pos room = std::max<Pos>({1, context / 2, context - given});
  const Pos steps = options.steps > 0 ? options.steps : std::min<Pos>(kSteps, room);
  const Pos prompt = std::min(given, options.prompt > 0 ? options.prompt : std::max<Pos>(1, context - steps));
  if (prompt + steps > context) {
    return fail(Code::invalid_argument,
                fmt::format("{} tokens of prompt and {} steps are more than the model's context of {}", prompt, steps,
                            context));
  }
  work.prompt.resize(static_cast<std::size_t>(prompt));
  work.steps = static_cast<int>(steps);
  return {};
}

std::string text_of(const engine::Loaded& loaded, std::span<const TokenId> ids) {
  if (!loaded.tokenizer) return "";
  auto text = loaded.tokenizer->decode(ids);
  return text ? std::move(*text) : "";
}

}  // namespace

bool FlipReport::equal() const noexcept {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const FlipRow& row) { return row.equal(); });
}

Result<FlipReport> flips(const FlipOptions& options, const EvalInput& input, const EvalCallbacks& callbacks) {
  const auto load = [&](DType dtype) {
    return engine::load(options.model, dtype, [&](double fraction) {
      if (callbacks.on_progress) {
        callbacks.on_progress(fmt::format("{}: loading {} %", name_of(dtype), static_cast<int>(fraction * 100)));
      }
      return !callbacks.keep_going || callbacks.keep_going();
    });
  };
  auto plain = load(DType::f32);
  if (!plain) return pass(plain);
  base::ThreadPool pool(options.threads > 0 ? options.threads : base::available_cpus());
  Work work{{}, 0, &pool, &callbacks, &options.wrap};
  auto ids = eval_ids(input, *plain);
  if (!ids) return pass(ids);
  work.prompt = std::move(*ids);
  if (auto ok = set_sizes(options, plain->model->config().context, work); !ok) return pass(ok);

  const EvalSubject f32 = eval_subject(*plain->model);
  const auto reference = reference_of(work, f32);
  if (!reference) return pass(reference);
  FlipReport report{options.model, static_cast<Pos>(work.prompt.size()), work.steps, {}, {}, {}};
  report.ids.assign(reference->ids.begin() + report.prompt, reference->ids.end());
  report.text = text_of(*plain, report.ids);
  const auto add = [&](const EvalSubject& subject) -> Result<void> {
    auto row = row_of(work, *reference, subject);
    if (!row) return pass(row);
    if (row->first) {
      row->first->was_text = text_of(*plain, {&row->first->was, 1});
      row->first->is_text = text_of(*plain, {&row->first->is, 1});
    }
    report.rows.push_back(std::move(*row));
    return {};
  };
  if (auto ok = add(f32); !ok) return pass(ok);
  for (const KvCodecs& kv : options.kv) {
    const auto subject = eval_subject(*plain->model, kv);
    if (!subject) return pass(subject);
    if (auto ok = add(*subject); !ok) return pass(ok);
  }
  for (const DType dtype : options.dtypes) {
    if (dtype == DType::f32) continue;
    const auto other = load(dtype);
    if (!other) return pass(other);
    if (auto ok = add(eval_subject(*other->model)); !ok) return pass(ok);
  }
  // Caches were run first, while the f32 model was there alone; weights are shown first.
  std::rotate(report.rows.begin() + 1, report.rows.begin() + 1 + static_cast<std::ptrdiff_t>(options.kv.size()),
              report.rows.end());
  return report;
}

}  // namespace stet::lab
