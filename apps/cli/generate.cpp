#include "generate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "cache_map.hpp"
#include "commands.hpp"
#include "completion.hpp"
#include "console.hpp"
#include "interrupt.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet generate \"ROMEO:\" -n 120 --temperature 0.8 --seed 1\n"
    "  stet generate -m gpt2/ --file story.txt --json | jq -r .text\n"
    "  stet generate --prompts requests.jsonl --batch 4 > results.jsonl\n\n"
    "The text goes to stdout as it is made, one summary line to stderr. Without a tokenizer ids are printed.\n"
    "--prompts reads one JSON object a line, {\"prompt\": \"...\"} or {\"ids\": [...]}, with flags as fields over "
    "those of\n"
    "the command line (n, temperature, top_k, top_p, min_p, repetition_penalty, seed, sequence, stop, ignore_eos, "
    "id),\n"
    "and writes one JSON object a line in the same order.";

/// Streams a completion to stdout as it is made.
class TextStream {
 public:
  TextStream(Output& out, bool as_ids) : out_(out), as_ids_(as_ids) {}

  bool take(const TokenEvent& event) {
    if (!as_ids_) return out_.write_text(event.piece);
    if (!event.id) return true;
    const bool ok = out_.write(fmt::format("{}{}", first_ ? "" : " ", *event.id));
    first_ = false;
    return ok;
  }

 private:
  Output& out_;
  bool as_ids_, first_ = true;
};

Result<Request> prepare(const Engine& engine, const GenerateFlags& flags) {
  Request request = flags.request;
  auto ids = prompt_ids(engine, flags.prompt);
  if (!ids) return pass(ids);
  request.prompt = std::move(*ids);
  if (auto ok = engine.check(request); !ok) return pass(ok);
  return request;
}

/// One request; its text goes to `out` as it comes, unless JSON will tell it.
Result<Completion> run_request(Engine& engine, const Request& request, bool json, Output& out) {
  TextStream stream(out, engine.tokenizer() == nullptr);
  auto completions = engine.generate(
      std::span(&request, 1), [&](const TokenEvent& event) { return (json || stream.take(event)) && !interrupted(); },
      [] { return !interrupted(); });
  if (!completions) return pass(completions);
  return std::move(completions->front());
}

void check_flags(const GenerateFlags& flags) {
  if (flags.json && flags.echo) throw CLI::ValidationError("--echo", "does not go with --json");
}

}  // namespace

int generate_one(GenerateFlags flags) {
  catch_interrupts();
  if (flags.dry_run) return dry_run(flags);
  if (auto ok = read_prompt(flags.prompt); !ok) return report(ok.error());
  auto engine = load_for(flags);
  if (!engine) return report(engine.error());
  const auto request = prepare(*engine, flags);
  if (!request) return report(request.error());

  if (auto ok = warn_of_codecs(*engine, *request); !ok) return report(ok.error());
  Output out(STDOUT_FILENO);
  if (flags.echo) out.write_text(flags.prompt.text);
  const auto completion = run_request(*engine, *request, flags.json, out);
  if (!completion) {
    end_text(out);
    return report(completion.error());
  }
  if (flags.json) {
    Json json = completion_json(*engine, *request, *completion);
    if (flags.cache_map) json["cache_map"] = cache_map_json(engine->cache_report());
    out.write(dump(json) + '\n');
  }
  if (!flags.json && engine->tokenizer() == nullptr && !completion->ids.empty()) out.write("\n");
  if (out.closed()) return end_run(*engine, flags, kOk);  // whoever read it has all they wanted
  end_text(out);
  if (!out.state()) return report(out.state().error());
  say(summary(*engine, *request, *completion));
  if (completion->reason == StopReason::no_room) {
    return end_run(*engine, flags, report({Code::capacity, completion->error}));
  }
  return end_run(*engine, flags, completion->reason == StopReason::interrupted ? kInterrupted : kOk);
}

namespace {

void add_kv_flags(CLI::App& sub, const std::shared_ptr<GenerateFlags>& flags) {
  add_number<std::size_t>(
      sub, "--prefix-cache", flags->prefix_bytes, {"a number of bytes from 1", [](std::size_t n) { return n > 0; }},
      "Keep what prompts and answers stored, up to N bytes: a prompt that begins like an earlier one is not computed "
      "again (best with --cache paged)");
  auto* audit = add_number<double>(sub, "--audit", flags->model.engine.audit,
                                   {"a number from 0 to 1", [](double r) { return r >= 0 && r <= 1; }},
                                   "Compute this share of prefix hits anew and compare the bits (default: 0)");
  audit->type_name("R");
  add_text(
      sub, "--save-kv", [flags](std::string file) { flags->save_kv = file_named("--save-kv", std::move(file)); },
      "Write what the cache holds at the end, or at Ctrl-C, into a file (docs/kv_format.md); the old file is replaced "
      "at once")
      ->type_name("FILE");
  auto* load = add_text(
      sub, "--load-kv", [flags](std::string file) { flags->load_kv = file_named("--load-kv", std::move(file)); },
      "Begin with what --save-kv wrote, from this model and config only");
  load->type_name("FILE");
  sub.add_flag("--reencode", flags->reencode,
               "With --load-kv: also rows stored in other codecs than --kv asks for; loses precision")
      ->needs(load);
  sub.add_flag("--cache-map", flags->cache_map,
               "Show the storage in use when the cache was fullest, and why prompts missed");
  sub.add_flag("--dry-run", flags->dry_run, "Print the memory this would take, and run nothing");
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  auto flags = std::make_shared<GenerateFlags>();
  auto* sub = app.add_subcommand("generate", "Continue a text, or many together");
  sub->footer(kExample);
  add_prompt_flags(*sub, flags->prompt, "PROMPT");
  add_model_flag(*sub, flags->model);
  add_number(*sub, "-n,--max-new", flags->request.max_new, from_to(0, std::numeric_limits<int>::max()),
             "Most new tokens; 0 only reads the prompt (default: 100)");
  add_sampling_flags(*sub, flags->request.sampling);
  add_text(
      *sub, "--stop",
      [flags](std::string text) {
        if (text.empty()) throw CLI::ValidationError("--stop", "must not be empty");
        flags->request.stop.push_back(std::move(text));
      },
      "End before this text; may be given several times")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_past_limit_flag(*sub, flags->request);
  sub->add_flag("--ignore-eos", flags->request.ignore_eos, "Go on after the model's end token");
  add_engine_flags(*sub, flags->model);
  auto* prompts = add_text(
      *sub, "--prompts", [flags](std::string file) { flags->prompts = file_named("--prompts", std::move(file)); },
      "Read prompts from a JSONL file and decode them together; - is stdin");
  prompts->type_name("FILE");
  for (const char* other : {"PROMPT", "--file", "--ids"}) prompts->excludes(sub->get_option(other));
  add_number(*sub, "--batch", flags->batch, from_to(1, 65536), "With --prompts: most decoded together (default: 8)")
      ->needs(prompts);
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  sub->add_flag("--echo", flags->echo, "Print the prompt before the text")->excludes(prompts);
  add_kv_flags(*sub, flags);
  sub->callback([flags, &run] {
    check_flags(*flags);
    if (flags->model.engine.audit > 0 && flags->prefix_bytes == 0 && flags->load_kv.empty()) {
      throw CLI::ValidationError("--audit", "needs --prefix-cache or --load-kv, whose hits it is about");
    }
    if (flags->prefix_bytes > 0) flags->model.engine.prefix_bytes = flags->prefix_bytes;
    run = [flags] { return flags->prompts.empty() ? generate_one(*flags) : generate_prompts(*flags); };
  });
}

}  // namespace stet::cli
