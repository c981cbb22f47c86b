#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "json.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  PromptFlags input;
  bool decode = false, json = false;
};

Result<Tokenizer> load_tokenizer(const ModelFlags& flags) {
  const std::string model = model_of(flags);
  if (model.starts_with("random:")) {
    return fail(Code::unsupported, fmt::format("{} has no tokenizer: its vocabulary has no texts", model));
  }
  return Tokenizer::load(model);
}

int print_ids(const Tokenizer& tokenizer, const TokenizeFlags& flags) {
  const auto ids = tokenizer.encode(flags.input.text, flags.input.special);
  if (!ids) return report(ids.error());
  return print_line(flags.json ? dump(Json(*ids)) : fmt::format("{}", fmt::join(*ids, " ")), kOk);
}

int print_text(const Tokenizer& tokenizer, const TokenizeFlags& flags) {
  const auto ids = parse_ids(flags.input.text);
  if (!ids) return report(ids.error());
  const auto text = tokenizer.decode(*ids);
  if (!text) return report(text.error());
  if (flags.json) {
    Json json;
    json["schema"] = kSchema;
    set_text(json, *text);
    return print_line(dump(json), kOk);
  }
  Output out(STDOUT_FILENO);
  out.write_text(*text);
  if (out.terminal()) end_text(out);
  return out.state() ? kOk : report(out.state().error());
}

int tokenize(TokenizeFlags flags) {
  if (auto ok = read_prompt(flags.input); !ok) return report(ok.error());
  const auto tokenizer = load_tokenizer(flags.model);
  if (!tokenizer) return report(tokenizer.error());
  return flags.decode ? print_text(*tokenizer, flags) : print_ids(*tokenizer, flags);
}

}  // namespace

void add_tokenize(CLI::App& app, Run& run) {
  auto flags = std::make_shared<TokenizeFlags>();
  auto* sub = app.add_subcommand("tokenize", "Text to token ids, or back");
  sub->footer(
      "Examples:\n"
      "  stet tokenize -m gpt2/ \"Let it stand.\"\n"
      "  stet tokenize -m gpt2/ --json < book.txt > ids.json\n"
      "  stet tokenize -m gpt2/ --decode \"5756 340 1302\"\n\n"
      "Text is taken and given byte for byte.");
  add_text(
      *sub, "TEXT",
      [flags](std::string text) {
        flags->input.text = std::move(text);
        flags->input.has_text = true;
      },
      "The text, or with --decode the ids; without it stdin is read. Write -- before one that begins with -");
  add_model_flag(*sub, flags->model);
  auto* special = sub->add_flag("--special", flags->input.special,
                                "Special tokens spelled in the text (<|endoftext|>) are themselves, not text");
  sub->add_flag("--decode", flags->decode, "Ids to text")->excludes(special);
  sub->add_flag("--json", flags->json, "An array of ids; with --decode an object with the text (docs/json.md)");
  sub->callback([flags, &run] { run = [flags] { return tokenize(*flags); }; });
}

}  // namespace stet::cli
