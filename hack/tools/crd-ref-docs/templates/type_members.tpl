{{- define "type_members" -}}
{{- $field := . -}}
{{- if eq $field.Name "metadata" -}}
Standard object metadata.
{{- else -}}
{{ markdownRenderFieldDoc $field.Doc | replace "<br />" " " }}
{{- end -}}
{{- end -}}
{{- define "validation" -}}
{{- $shown := false -}}
{{- range . -}}
{{- if not (or (hasPrefix "Optional" .) (hasPrefix "Schemaless" .)) -}}
{{- if $shown }}<br />{{ end -}}
{{- if hasPrefix "Required" . }}Required{{ else }}{{ markdownRenderFieldDoc . }}{{ end -}}
{{- $shown = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
