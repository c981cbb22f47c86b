#include "lab/limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lab/break_play.hpp"
#include "lab/pairs.hpp"

namespace stet::lab {
namespace {

// A window has to be left behind at least twice for its rows to be dropped.
constexpr Pos kShortestLimit = 12, kUsualLimit = 128, kLargeLimit = 32;

// A text of one token, continued greedily; slots are left as they come, since filling them takes time.
Play from_one_token(const model::Model& model, const LimitOptions& options, int steps) {
  Play play;
  play.prompts = {random_ids(model.config(), 1, options.seed, 3)};
  if (model.config().bos) play.prompts = {{*model.config().bos}};
  play.steps = steps;
  play.poison = false;
  play.threads = options.threads;
  return play;
}

// The last of so many tries, with the fastest time of each step.
Result<Played> fastest(const model::Model& model, const Play& what, int tries, const KeepGoing& go) {
  auto best = play(model, what, go);
  for (int i = 1; i < tries && best; ++i) {
    auto next = play(model, what, go);
    if (!next) return next;
    for (std::size_t t = 0; t < next->seconds.size(); ++t) {
      next->seconds[t] = std::min(next->seconds[t], best->seconds[t]);
    }
    best = std::move(next);
  }
  return best;
}

// The shape of the character model whose times were published.
bool is_published(const ModelConfig& config) {
  constexpr int kLayers = 4, kWidth = 128;
  return config.family == "gpt2" && config.layers == kLayers && config.width == kWidth && config.context == kUsualLimit;
}

std::size_t differing(const model::Model& model, const Played& a, const Played& b) {
  return compare_bits(a.logits.front(), b.logits.front(), model.dtype()).differing;
}

class Measuring {
 public:
  Measuring(const LimitOptions& options, const LimitCallbacks& callbacks) : options_(options), callbacks_(callbacks) {}

  Result<LimitReport> run() {
    auto loaded = load(options_.model);
    if (!loaded) return pass(loaded);
    if (auto ok = resolve(*loaded); !ok) return pass(ok);
    for (const int tokens : options_.lengths) {
      if (auto ok = recompute(*loaded->model, tokens); !ok) return pass(ok);
    }
    if (auto ok = slide(*loaded); !ok) return pass(ok);
    if (auto ok = turn(*loaded); !ok) return pass(ok);
    return std::move(report_);
  }

 private:
  Result<engine::Loaded> load(const std::string& name) const {
    return engine::load(name, options_.dtype, [&](double fraction) {
      say(fmt::format("loading {} {} %", name, static_cast<int>(fraction * 100)));
      return !callbacks_.keep_going || callbacks_.keep_going();
    });
  }

  void say(const std::string& what) const {
    if (callbacks_.on_progress) callbacks_.on_progress(what);
  }

  Result<void> resolve(const engine::Loaded& loaded) {
    const Pos context = loaded.model->config().context;
    const bool large = is_large(*loaded.model);
    Pos& limit = options_.limit;
    if (limit == 0) limit = std::min(context, large ? kLargeLimit : kUsualLimit);
    if (limit < kShortestLimit || limit > context) {
      return fail(Code::invalid_argument, fmt::format("a limit of {} tokens: must be {} to the model's context of {}",
                                                      limit, kShortestLimit, context));
    }
    if (options_.tries == 0) options_.tries = large ? 3 : 5;
    if (options_.threads == 0) options_.threads = base::available_cpus();
    if (options_.lengths.empty()) {
      options_.lengths = {static_cast<int>(limit * 100 / kUsualLimit), static_cast<int>(limit * 300 / kUsualLimit)};
    }
    for (const int tokens : options_.lengths) {
      if (tokens < 1) return fail(Code::invalid_argument, fmt::format("texts of {} new tokens: at least 1", tokens));
    }
    report_.model = loaded.name;
    report_.family = loaded.model->config().family;
    report_.dtype = options_.dtype;
    report_.context = context;
    report_.limit = limit;
    report_.tries = options_.tries;
    report_.threads = options_.threads;
    report_.seed = options_.seed;
    report_.fitting = static_cast<int>(limit) - 1;
    return {};
  }

  // One text with a cache and without, in the same windows.
  Result<void> recompute(const model::Model& model, int tokens) {
    Play with = from_one_token(model, options_, tokens);
    with.limit = options_.limit;
    Play without = with;
    without.recompute = true;
    with.wrap = options_.wrap;
    std::vector<Played> both;
    for (const Play* one : {&with, &without}) {
      say(fmt::format("{} tokens {} a cache", tokens, one->recompute ? "without" : "with"));
      auto played = fastest(model, *one, options_.tries, callbacks_.keep_going);
      if (!played) return pass(played);
      LimitRun run;
      run.cached = !one->recompute;
      run.tokens = tokens;
      // The first token comes behind the prompt's one, so the limit's last comes behind `limit` tokens.
      run.past = std::max(0, tokens - static_cast<int>(options_.limit));
      run.seconds = played->seconds;
      if (is_published(model.config())) run.published = published(tokens, run.cached);
      report_.runs.push_back(std::move(run));
      both.push_back(std::move(*played));
    }
    report_.compared += both[0].logits.front().size() / size_of(model.dtype());
    report_.differing += differing(model, both[0], both[1]);
    return {};
  }

  // In NumPy on a laptop.
  double published(int tokens, bool cached) const {
    if (options_.limit != kUsualLimit) return 0;
    constexpr int kShort = 100, kLong = 300;
    if (tokens == kShort) return cached ? 0.1 : 0;
    if (tokens == kLong) return cached ? 3.5 : 4.2;
    return 0;
  }

  Result<void> slide(const engine::Loaded& loaded) {
    say("a naive slide");
    BreakOptions options;
    options.model = options_.model;
    options.learned = options_.learned;
    options.rotary = options_.rotary;
    options.bugs = {"naive-slide"};
    options.dtype = options_.dtype;
    options.seed = options_.seed;
    options.limit = options_.limit;
    BreakCallbacks callbacks;
    callbacks.keep_going = callbacks_.keep_going;
    auto broken = break_model(options, callbacks);
    if (!broken) return pass(broken);
    report_.slide = std::move(broken->bugs.front());
    if (report_.slide.stand_in) return {};
    const int longest = *std::max_element(options_.lengths.begin(), options_.lengths.end());
    Play play = from_one_token(*loaded.model, options_, longest);
    play.cache.retain = Retain::visible;
    play.cache.spans = {{options_.limit, 0}};
    play.max_step = 1;
    play.wrap = naive_slide(options_.limit);
    auto played = fastest(*loaded.model, play, options_.tries, callbacks_.keep_going);
    if (!played) return pass(played);
    report_.slide_seconds = std::move(played->seconds);
    return {};
  }

  // A rotary model keeps what its window sees: phases belong to rows, and only their differences count.
  Result<void> turn(const engine::Loaded& given) {
    if (given.model->config().family != "gpt2") return turn(*given.model, given.name, false);
    auto loaded = load(options_.rotary);
    if (!loaded) return pass(loaded);
    return turn(*loaded->model, loaded->name, true);
  }

  Result<void> turn(const model::Model& model, const std::string& name, bool stand_in) {
    LimitReport::Rotary& rotary = report_.rotary;
    rotary.model = name;
    rotary.stand_in = stand_in;
    const Pos context = model.config().context;
    rotary.window = std::min(options_.limit, std::max<Pos>(1, context / 2));
    rotary.tokens = static_cast<int>(std::min(context, 3 * rotary.window)) - 1;
    say(fmt::format("a window of {} tokens on {}", rotary.window, name));
    Play dropped = from_one_token(model, options_, rotary.tokens);
    dropped.cache.retain = Retain::visible;
    dropped.cache.spans = {{rotary.window, 0}};
    dropped.max_step = 1;  // else a ring has room for the whole text, and nothing is dropped
    Play masked = dropped;
    masked.cache.retain = Retain::all;
    dropped.wrap = options_.wrap;
    auto a = fastest(model, dropped, options_.tries, callbacks_.keep_going);
    if (!a) return pass(a);
    auto b = play(model, masked, callbacks_.keep_going);
    if (!b) return pass(b);
    rotary.compared = a->logits.front().size() / size_of(model.dtype());
    rotary.differing = differing(model, *a, *b);
    rotary.seconds = std::move(a->seconds);
    rotary.reserved = a->usage.reserved;
    rotary.reserved_masked = b->usage.reserved;
    rotary.evicted = a->evicted;
    return {};
  }

  LimitOptions options_;
  const LimitCallbacks& callbacks_;
  LimitReport report_;
};

}  // namespace

double total_of(const std::vector<double>& seconds, Pos begin, Pos end) {
  end = std::min(end, static_cast<Pos>(seconds.size()));
  return begin < end ? std::accumulate(seconds.begin() + begin, seconds.begin() + end, 0.0) : 0;
}

double mean_of(const std::vector<double>& seconds, Pos begin, Pos end) {
  end = std::min(end, static_cast<Pos>(seconds.size()));
  return begin < end ? total_of(seconds, begin, end) / static_cast<double>(end - begin) : 0;
}

bool LimitReport::holds() const {
  return compared > 0 && differing == 0 && rotary.compared > 0 && rotary.differing == 0 && slide.caught() &&
         slide.sleeps();
}

Result<LimitReport> measure_limit(const LimitOptions& options, const LimitCallbacks& callbacks) {
  return Measuring(options, callbacks).run();
}

}  // namespace stet::lab
