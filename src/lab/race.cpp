#include "lab/race.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/digest.hpp"
#include "base/memory.hpp"
#include "base/thread_pool.hpp"
#include "engine/loaded.hpp"

namespace stet::lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3;
constexpr Form kForms[] = {Form::contiguous, Form::growing, Form::paged, Form::by_rows, Form::at_once};

// What the preallocated cache, which runs first, made of a prompt: the others are given its ids, and held to its bits.
struct Reference {
  Ids ids;                            // the prompt and what came after it
  std::vector<base::Digest> digests;  // of each step's logits
};

bool measured(const RaceOptions& o, Form form, int step) {
  return is_cached(form) || step % o.every == 0 || step == o.new_tokens - 1;
}

class Racer {
 public:
  Racer(const model::Model& model, base::ThreadPool& pool, const RaceOptions& options, const RaceCallbacks& callbacks)
      : model_(model), pool_(pool), options_(options), callbacks_(callbacks) {}

  FormOptions form_options(Form form, Pos prompt) const {
    FormOptions o;
    o.form = form;
    o.max_len = prompt + options_.new_tokens;
    o.prefill_chunk = options_.prefill_chunk;
    o.all_logits = options_.all_logits;
    o.page_tokens = options_.page_tokens;
    o.seed = options_.seed;
    if (form == Form::paged) o.wrap = options_.wrap;
    return o;
  }

  Result<RaceRun> run(Form form, Pos prompt, Reference& reference) {
    const FormOptions o = form_options(form, prompt);
    const bool reset = base::reset_peak_memory();
    auto runner = FormRun::make(model_, pool_, o);
    if (!runner) return pass(runner);
    runner->keep_going = callbacks_.keep_going;
    if (auto ok = warm_up(*runner, form, prompt, reference.ids); !ok) return pass(ok);
    const std::uint64_t copied_before = runner->usage().copied;
    RaceRun result;
    result.form = form;
    result.prompt = prompt;
    result.step_ms.assign(static_cast<std::size_t>(options_.new_tokens), std::numeric_limits<double>::quiet_NaN());
    for (int i = 0; i < options_.new_tokens; ++i) {
      if (!measured(options_, form, i)) continue;
      if (callbacks_.on_progress) {
        callbacks_.on_progress(
            fmt::format("prompt {}, {}: token {} of {}", prompt, name_of(form), i + 1, options_.new_tokens));
      }
      if (auto ok = one_step(*runner, i, reference, result); !ok) return pass(ok);
    }
    total(result);
    result.cache_bytes = runner->cache_bytes();
    result.activation_bytes = runner->activation_bytes();
    if (reset) result.process_peak = base::peak_memory();
    result.copied = runner->usage().copied - copied_before;
    if (form == Form::growing) {
      const auto n0 = static_cast<double>(prompt), n1 = static_cast<double>(prompt + options_.new_tokens - 1);
      result.copied_formula = bytes_per_token() * (n1 * n1 - n0 * n0) / 2;
    }
    return result;
  }

 private:
  // Steps that are not timed: caches, branch predictors and the pool's threads get going.
  Result<void> warm_up(FormRun& runner, Form form, Pos prompt, const Ids& ids) const {
    for (int i = 0; i < kWarmUps; ++i) {
      const Pos n = is_cached(form) ? std::min<Pos>(prompt + i, static_cast<Pos>(ids.size())) : prompt;
      if (i > 0 && is_cached(form)) {
        if (auto ok = runner.cut(n - 1); !ok) return ok;
      }
      const auto logits = runner.step(std::span(ids).first(static_cast<std::size_t>(n)));
      if (!logits) return pass(logits);
    }
    return runner.cut(0);
  }

  Result<void> one_step(FormRun& runner, int i, Reference& reference, RaceRun& result) const {
    const auto length = static_cast<std::size_t>(result.prompt + i);
    const auto start = Clock::now();
    const auto logits = runner.step(std::span(reference.ids).first(length));
    if (!logits) return pass(logits);
    const TokenId top = top_token(model_, *logits);
    result.step_ms[static_cast<std::size_t>(i)] =
        std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (is_cached(result.form)) result.live_bytes.push_back(runner.usage().live);
    const base::Digest digest = base::digest_of(*logits);
    if (result.form == kForms[0]) {
      reference.digests.push_back(digest);
      reference.ids.push_back(top);
      return {};
    }
    ++result.compared;
    if (digest != reference.digests[static_cast<std::size_t>(i)] || top != reference.ids[length]) ++result.different;
    return {};
  }

  static void total(RaceRun& run) {
    std::size_t last = 0;  // measured before
    for (std::size_t i = 0; i < run.step_ms.size(); ++i) {
      if (!std::isfinite(run.step_ms[i])) continue;
      for (std::size_t gap = last + 1; gap < i; ++gap) {
        const double part = static_cast<double>(gap - last) / static_cast<double>(i - last);
        run.total_ms += run.step_ms[last] + part * (run.step_ms[i] - run.step_ms[last]);
        run.estimated = true;
      }
      run.total_ms += run.step_ms[i];
      last = i;
    }
  }

  double bytes_per_token() const {
    CacheOptions options;
    options.max_len = 1;
    const auto plan = plan_cache(model_.cache_spec(), options);
    return plan ? static_cast<double>(plan->bytes_per_token) : 0;
  }

  const model::Model& model_;
  base::ThreadPool& pool_;
  const RaceOptions& options_;
  const RaceCallbacks& callbacks_;
};

// Fills in the lengths that were not given, as published or, where those do not fit, by the context.
Result<void> choose_lengths(RaceOptions& o, Pos context, std::string& why_smaller) {
  constexpr Pos kPublished[] = {16, 128, 512};
  constexpr int kPublishedNew = 400;
  if (o.prompts.empty() && o.new_tokens == 0) {
    if (kPublished[2] + kPublishedNew <= context) {
      o.prompts.assign(std::begin(kPublished), std::end(kPublished));
      o.new_tokens = kPublishedNew;
    } else {
      o.prompts = {std::max<Pos>(1, context / 16), std::max<Pos>(1, context / 4), std::max<Pos>(1, context / 2)};
      o.new_tokens = static_cast<int>(std::max<Pos>(1, context / 4));
      why_smaller = fmt::format(
          "The published 16, 128 and 512 tokens with 400 new ones do not fit this context of {}: ctx/16, ctx/4, ctx/2 "
          "and ctx/4 instead.",
          context);
    }
  } else if (o.prompts.empty()) {
    for (const Pos prompt : kPublished) {
      if (prompt + o.new_tokens <= context) o.prompts.push_back(prompt);
    }
    if (o.prompts.empty()) o.prompts = {1};
  } else if (o.new_tokens == 0) {
    const Pos longest = *std::max_element(o.prompts.begin(), o.prompts.end());
    o.new_tokens = static_cast<int>(std::clamp<Pos>(context - longest, 1, kPublishedNew));
  }
  std::sort(o.prompts.begin(), o.prompts.end());
  o.prompts.erase(std::unique(o.prompts.begin(), o.prompts.end()), o.prompts.end());
  for (const Pos prompt : o.prompts) {
    if (prompt < 1)
      return fail(Code::invalid_argument, fmt::format("a prompt of {} tokens: it needs at least one", prompt));
    if (prompt + o.new_tokens > context) {
      return fail(Code::invalid_argument, fmt::format("a prompt of {} and {} new tokens do not fit the context of {}",
                                                      prompt, o.new_tokens, context));
    }
  }
  return {};
}

}  // namespace

double RaceRun::tpot_ms(double quantile) const {
  std::vector<double> rest;
  for (std::size_t i = 1; i < step_ms.size(); ++i) {
    if (std::isfinite(step_ms[i])) rest.push_back(step_ms[i]);
  }
  if (rest.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(rest.begin(), rest.end());
  const double at = quantile * static_cast<double>(rest.size() - 1);
  const auto below = static_cast<std::size_t>(at), above = std::min(below + 1, rest.size() - 1);
  return rest[below] + (at - static_cast<double>(below)) * (rest[above] - rest[below]);
}

bool RaceReport::equal() const {
  int compared = 0, different = 0;
  for (const RaceRun& run : runs) {
    compared += run.compared;
    different += run.different;
  }
  return compared > 0 && different == 0;
}

const RaceRun& RaceReport::run_of(Form form, Pos prompt) const {
  return *std::find_if(runs.begin(), runs.end(),
                       [&](const RaceRun& run) { return run.form == form && run.prompt == prompt; });
}

Result<RaceReport> race(const RaceOptions& options, const RaceCallbacks& callbacks) {
  if (options.every < 1 || options.new_tokens < 0 || options.prefill_chunk < 0) {
    return fail(Code::invalid_argument, "each so manieth step: from 1; new tokens and the prompt's chunk: from 0");
  }
  RaceReport report;
  report.options = options;
  const auto config = engine::config_of(options.model);
  if (!config) return pass(config);
  if (auto ok = choose_lengths(report.options, config->context, report.why_smaller); !ok) return pass(ok);
  const auto loaded = engine::load(options.model, options.dtype,
                                   [&](double) { return !callbacks.keep_going || callbacks.keep_going(); });
  if (!loaded) return pass(loaded);
  base::ThreadPool pool(options.threads);
  Racer racer(*loaded->model, pool, report.options, callbacks);
  for (const Pos prompt : report.options.prompts) {
    for (const Form form : kForms) {
      const std::size_t bytes = most_bytes(*loaded->model, racer.form_options(form, prompt));
      if (auto ok = engine::check_memory(loaded->name, {0, 0, bytes}); !ok) return pass(ok);
    }
  }
  for (const Pos prompt : report.options.prompts) {
    Reference reference;
    reference.ids = random_ids(loaded->model->config(), prompt, options.seed, kFormsStream);
    for (const Form form : kForms) {
      auto run = racer.run(form, prompt, reference);
      if (!run) return pass(run);
      report.runs.push_back(std::move(*run));
    }
  }
  return report;
}

}  // namespace stet::lab
