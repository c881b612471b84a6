"""The scripts that teach bash, zsh and fish to complete `runai` and `hotdesk`, and what they call: `hotdesk __complete WORDS… PARTIAL`."""

from __future__ import annotations

from collections.abc import Sequence

from hotdesk_api.errors import Invalid

BASH = r"""# Completion of runai and hotdesk for bash: eval "$(runai completion bash)"
_hotdesk_complete() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD-1}") current="${COMP_WORDS[COMP_CWORD]}" line
    COMPREPLY=()
    if [[ "$current" == "=" ]]; then current=""; fi
    while IFS=$'\t' read -r line _; do
        [[ -n "$line" ]] && COMPREPLY+=("$(printf '%q' "$line")")
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" "$current" 2>/dev/null)
}
complete -o default -F _hotdesk_complete runai hotdesk
"""
ZSH = r"""#compdef runai hotdesk
# Completion of runai and hotdesk for zsh: eval "$(runai completion zsh)"
_hotdesk_complete() {
    local -a found
    local line
    while IFS=$'\t' read -r line help; do
        [[ -n "$line" ]] && found+=("${line//:/\\:}${help:+:$help}")
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT-1]}" "${words[CURRENT]}" 2>/dev/null)
    if (( ${#found} )); then _describe 'value' found; else _files; fi
}
compdef _hotdesk_complete runai hotdesk
"""
FISH = r"""# Completion of runai and hotdesk for fish: runai completion fish | source
function _hotdesk_complete
    set -l words (commandline -opc)
    $words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c runai -f -a '(_hotdesk_complete)'
complete -c hotdesk -f -a '(_hotdesk_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def script(shell: str) -> str:
    if shell not in SCRIPTS:
        raise Invalid(f"There is no completion for {shell}.", value=shell, next_step=f"There is one for {', '.join(SCRIPTS)}.")
    return SCRIPTS[shell]


def candidates(words: Sequence[str]) -> str:
    """What the scripts read: one candidate a line, a tab, its help. The last word is the one being typed."""
    from hotdesk.commands.complete import complete  # `completion bash` itself needs none of it
    from hotdesk.names import LiveNames

    *before, partial = [word for word in words if word != "="] or [""]  # bash splits at `=`
    return "".join(f"{found.text}\t{found.help}\n" for found in complete(before, partial, LiveNames()))
