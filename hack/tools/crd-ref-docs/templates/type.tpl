{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type }}

### {{ $type.Name }}
{{- if $type.IsAlias }}

Underlying type: {{ markdownRenderTypeLink $type.UnderlyingType }}
{{- end }}

{{ $type.Doc }}
{{- if $type.Validation }}

Validation:
{{ range $type.Validation }}
- {{ . }}
{{- end }}
{{- end }}
{{- if $type.References }}

Appears in:
{{- range $i, $r := $type.SortedReferences }}{{ if $i }},{{ end }} {{ markdownRenderTypeLink $r }}{{ end }}
{{- end }}
{{- if $type.Members }}

| Field | Description | Default | Validation |
| --- | --- | --- | --- |
{{- if $type.GVK }}
| `apiVersion` _string_ | `{{ $type.GVK.Group }}/{{ $type.GVK.Version }}` | | |
| `kind` _string_ | `{{ $type.GVK.Kind }}` | | |
{{- end }}
{{- range $type.Members }}
| `{{ .Name }}` _{{ markdownRenderType .Type }}_ | {{ template "type_members" . }} | {{ with .Default }}{{ markdownRenderDefault . }}{{ end }} | {{ template "validation" .Validation }} |
{{- end }}
{{- end }}
{{- if $type.EnumValues }}

| Value | Meaning |
| --- | --- |
{{- range $type.EnumValues }}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc | trimSuffix "<br />" | replace "<br />" " " }} |
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}
