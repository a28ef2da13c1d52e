{{- define "gvDetails" -}}
{{- $gv := . -}}
## {{ $gv.GroupVersionString }}

{{ $gv.Doc | trim }}

Kinds:{{ range $gv.SortedKinds }} {{ $gv.TypeForKind . | markdownRenderTypeLink }}{{ end }}

{{- range $gv.SortedTypes }}
{{- template "type" . }}
{{- end }}
{{- end -}}
