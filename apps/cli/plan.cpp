#include "plan.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "bill.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "interrupt.hpp"
#include "lab/plan_selftest.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet plan --list\n"
    "  stet plan --model llama-3-8b --context 8k,128k --batch 1,32\n"
    "  stet plan --model llama-2-7b --context 4k --batch 8 --kv f16 --kv int8 --kv int8,int4 --fit 24GiB\n"
    "  stet plan --model gemma-3-4b --context 1k,8k,128k --cache contiguous,paged --page 64\n"
    "  stet plan -m gpt2/ --cache paged --kv int8 --batch 64 --json\n"
    "  stet plan --selftest 1000\n\n"
    "No weight is read. For a model that Stet runs the bill is binding: the cache reserves just that, and a model "
    "that\n"
    "does not fit is refused before anything is allocated. Contexts past the model's own are shown and marked.\n"
    "--selftest plans random caches, makes them and compares the bytes.";

struct PlanFlags {
  BillFlags bill;
  int selftest = 0;
  std::uint64_t seed = 0;
};

Pos context_of(const ModelInfo& info, const EngineOptions& options) {
  return options.max_len == 0 ? info.context : options.max_len;
}

int selftest(const PlanFlags& flags) {
  catch_interrupts();
  Progress progress("planning");
  const auto result = lab::plan_selftest(flags.selftest, flags.seed, [&](int done) {
    progress.show(static_cast<double>(done) / static_cast<double>(flags.selftest));
    return !interrupted();
  });
  progress.clear();
  if (!result) return report(result.error());
  const bool good = result->faults.empty() && result->made > 0;
  Output out(STDOUT_FILENO);
  if (flags.bill.json) {
    Json json;
    json["schema"] = kSchema;
    json["planned"] = result->planned;
    json["made"] = result->made;
    json["compared"] = result->compared;
    json["bytes"] = result->bytes;
    json["faults"] = result->faults;
    json["equal"] = good;
    out.write(dump(json) + '\n');
  } else {
    for (const auto& fault : result->faults) out.write(fault + '\n');
    out.write(fmt::format("verdict: {}; {} plans, {} caches made of {} in all, {} larger ones compared, {} faults\n",
                          good ? "plan = usage" : "NOT equal", result->planned, result->made,
                          bytes_words(result->bytes), result->compared, result->faults.size()));
  }
  if (!out.state() && !out.closed()) return report(out.state().error());
  return good ? kOk : kFailure;
}

}  // namespace

std::string bytes_words(std::size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1024.0 * 1024.0);
  return mib < 0.1 ? fmt::format("{} bytes", bytes) : fmt::format("{} bytes ({:.1f} MiB)", bytes, mib);
}

std::size_t peak_bytes(const ModelInfo& info) {
  return info.weight_bytes + info.cache_bytes + info.scratch_bytes;
}

std::string plan_text(const ModelInfo& info, const EngineOptions& options) {
  std::string text;
  const auto row = [&text](std::string_view label, const std::string& value) {
    text += fmt::format("{:<18}{}\n", label, printable(value));
  };
  std::string layout = name_of(options.cache);
  if (options.cache == CacheMode::paged) {
    layout += fmt::format(", pages of {} tokens{}", options.page_tokens,
                          options.pool_tokens > 0 ? fmt::format(", {} in the pool", options.pool_tokens) : "");
  }
  row("cache", layout);
  row("cache a token", fmt::format("{} in {}", bytes_words(info.cache_bytes_per_token), info.cache_codecs));
  row("memory", fmt::format("for {} of {} tokens, weights in {}:",
                            options.max_seqs == 1 ? "1 sequence" : fmt::format("{} sequences", options.max_seqs),
                            context_of(info, options), name_of(options.dtype)));
  row("  weights", bytes_words(info.weight_bytes));
  row("  cache", bytes_words(info.cache_bytes));
  row("  scratch", bytes_words(info.scratch_bytes));
  row("  peak", bytes_words(peak_bytes(info)));
  return text;
}

Json plan_json(const ModelInfo& info, const EngineOptions& options) {
  Json json;
  json["context"] = context_of(info, options);
  json["batch"] = options.max_seqs;
  json["cache"] = name_of(options.cache);
  if (options.cache == CacheMode::paged) json["page_tokens"] = options.page_tokens;
  json["cache_codecs"] = info.cache_codecs;
  json["weight_bytes"] = info.weight_bytes;
  json["cache_bytes_per_token"] = info.cache_bytes_per_token;
  json["cache_bytes"] = info.cache_bytes;
  json["scratch_bytes"] = info.scratch_bytes;
  json["peak_bytes"] = peak_bytes(info);
  return json;
}

void add_plan(CLI::App& app, Run& run) {
  auto flags = std::make_shared<PlanFlags>();
  auto* sub = app.add_subcommand("plan", "The memory bill of a model: its cache at every context, beside its weights");
  sub->footer(kExample);
  add_bill_flags(*sub, flags->bill);
  add_number(*sub, "--selftest", flags->selftest, from_to(1, std::numeric_limits<int>::max()),
             "Instead: plan this many random caches and make those of at most 64 MiB");
  add_number<std::uint64_t>(*sub, "--seed", flags->seed,
                            {"a whole number from 0 that fits 64 bits", [](std::uint64_t) { return true; }},
                            "With --selftest: names the random caches (default: 0)");
  add_report_flag(*sub, flags->bill.report, run);
  sub->add_flag("--json", flags->bill.json, "One JSON object instead of text (docs/json.md)");
  sub->callback([sub, flags, &run] {
    flags->bill.dtype_given = sub->count("--dtype") > 0;
    if (!flags->bill.report.folder.empty() && (flags->selftest > 0 || flags->bill.list)) {
      throw CLI::ValidationError("--report", "goes with a bill, not with --selftest or --list");
    }
    if (flags->bill.list && sub->count_all() > 2 + (flags->bill.json ? 1 : 0)) {
      throw CLI::ValidationError("--list", "goes alone, or with --json");
    }
    if (flags->selftest == 0 && sub->count("--seed") > 0) throw CLI::ValidationError("--seed", "goes with --selftest");
    if (flags->selftest > 0 && sub->count("--model") > 0) {
      throw CLI::ValidationError("--selftest", "plans random caches, not those of a model");
    }
    run = [flags] { return flags->selftest > 0 ? selftest(*flags) : run_bill(flags->bill); };
  });
}

}  // namespace stet::cli
