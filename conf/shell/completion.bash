# Completion of Quantline's commands in bash, for `python -m MODULE` and `quantline COMMAND`.
_quantline_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" call=() words=() word reply
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    word="${words[${#words[@]} - 1]}"
    if [[ "${words[0]##*/}" == quantline ]]; then
        call=("${words[0]}")
        ((${#words[@]} > 2)) && call+=("${words[1]}")
    elif [[ "${words[1]}" == -m && ${#words[@]} -gt 3 ]]; then
        case "${words[2]}" in
            quantize | quantize.* | evaluate | evaluate.* | serve | serve.*)
                call=("${words[0]}" -m "${words[2]}") ;;
        esac
    fi
    COMPREPLY=()
    ((${#call[@]})) || return 0
    # Bash replaces what follows the last of its separators; in an open quote, the whole word.
    local kept="${word%"${word##*[=:]}"}"
    if [[ "$word" == [\'\"]* ]]; then
        word="${word:1}" kept=""
    fi
    while IFS= read -r reply; do
        [[ "$reply" == "$word"* ]] && COMPREPLY+=("${reply#"$kept"}")
    done < <(COMP_LINE="${call[*]} $word" "${call[@]}" --shell-completion query=bash 2> /dev/null)
}
complete -o bashdefault -o default -o nospace -F _quantline_completion python python3 quantline
