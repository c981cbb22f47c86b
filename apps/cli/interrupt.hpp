// Ctrl-C: the first one ends the work in good order, the second one ends the program.
#pragma once

namespace stet::cli {

/// From here on the first Ctrl-C only makes interrupted() true, for the loops that poll it. Commands call it that have
/// something to end in good order; in the others Ctrl-C just kills. Nothing happens if the caller made this process
/// ignore SIGINT, as a shell does for background jobs.
void catch_interrupts();

/// Whether Ctrl-C was pressed.
bool interrupted() noexcept;

}  // namespace stet::cli
