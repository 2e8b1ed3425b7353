# Completion of rlctl for fish:
#   rlctl completion fish > ~/.config/fish/completions/rlctl.fish

function __rlctl_complete
    set -l typed (commandline -opc)
    set -l raw (commandline -ct)
    # A quote that is still open cannot be unescaped.
    set -l last (string unescape -- $raw; or string trim -l -c "'\"" -- $raw)
    set -l answers ($typed[1] __complete fish $typed "$last" 2>/dev/null)
    if test "$answers[1]" = words
        printf '%s\n' $answers[2..-1]
    else
        __fish_complete_path "$last"
    end
end

complete --command rlctl --no-files --arguments '(__rlctl_complete)'
