# Completion of rlctl for bash 4.4 or newer. Either of:
#   rlctl completion bash > ~/.local/share/bash-completion/completions/rlctl
#   source <(rlctl completion bash)        in ~/.bashrc

_rlctl() {
    local program=${1/#\~/$HOME} answers=()
    mapfile -t answers < <("$program" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    if [[ ${answers[0]} != words ]]; then
        COMPREPLY=()
        compopt -o default
        return
    fi
    COMPREPLY=("${answers[@]:1}")
    if [[ ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace
    fi
}

complete -F _rlctl rlctl
