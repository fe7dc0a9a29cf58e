// SPDX-License-Identifier: Apache-2.0
// The flag --pull of the commands that open models.
#pragma once

namespace CLI {
class App;
}

namespace brim::cli {

// Adds --pull to a command, and its subcommands, that takes the name of a model.
void add_pull_flag(CLI::App& verb);
// Downloads missing models when they are opened, if --pull was given to this command.
void apply_pull_flag(const CLI::App& given);

}  // namespace brim::cli
