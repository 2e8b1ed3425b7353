#compdef rlctl
# Completion of rlctl for zsh. Either of:
#   rlctl completion zsh > "${fpath[1]}/_rlctl"        and compinit
#   source <(rlctl completion zsh)                     in ~/.zshrc, after compinit

_rlctl() {
    local answer value meaning
    local -a answers whole whole_shown open open_shown
    answers=("${(@f)$(${~words[1]} __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    if [[ $answers[1] != words ]]; then
        _files
        return
    fi
    for answer in "${(@)answers[2,-1]}"; do
        value=${answer%%$'\t'*}
        meaning=${answer#*$'\t'}
        # What ends so is gone on with, without a space.
        if [[ $value == *[=.] ]]; then
            open+=("$value")
            open_shown+=("$value${meaning:+  -- $meaning}")
        else
            whole+=("$value")
            whole_shown+=("$value${meaning:+  -- $meaning}")
        fi
    done
    (( $#open )) && compadd -S '' -l -d open_shown -- "${(@)open}"
    (( $#whole )) && compadd -l -d whole_shown -- "${(@)whole}"
}

if [[ $funcstack[1] == _rlctl ]]; then
    _rlctl "$@"
else
    compdef _rlctl rlctl
fi
