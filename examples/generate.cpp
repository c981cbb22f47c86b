// Loads a model and prints a generation as it is made:  generate MODEL [PROMPT]
#include <iostream>
#include <string>

#include "stet/engine.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: generate MODEL [PROMPT]\n";
    return 2;
  }
  const std::string prompt = argc > 2 ? argv[2] : "ROMEO:";

  auto engine = stet::Engine::load(argv[1], {});
  if (!engine) {
    std::cerr << engine.error().message << '\n';
    return 1;
  }
  if (engine->tokenizer() == nullptr) {
    std::cerr << argv[1] << " has no tokenizer\n";
    return 1;
  }
  const auto ids = engine->tokenizer()->encode(prompt);
  if (!ids) {
    std::cerr << ids.error().message << '\n';
    return 1;
  }

  stet::Request request;
  request.prompt = *ids;
  request.max_new = 80;
  request.sampling.temperature = 0.7;

  std::cout << prompt;
  const auto done = engine->generate({&request, 1}, [](const stet::TokenEvent& event) {
    std::cout << event.piece << std::flush;
    return std::cout.good();  // false stops: nobody reads any more
  });
  if (!done) {
    std::cerr << done.error().message << '\n';
    return 1;
  }
  const stet::Completion& completion = done->front();
  std::cout << "\n\n"
            << completion.ids.size() << " tokens, stopped by " << stet::name_of(completion.reason)
            << "; the cache held " << engine->cache_usage().used << " of " << engine->cache_usage().reserved
            << " bytes\n";
  return 0;
}
