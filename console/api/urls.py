"""Routes of the API: wiring only."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path, re_path

from console.api import (
    alerts,
    audit,
    captures,
    docs,
    gateways,
    keys,
    latency,
    memory,
    models,
    nodes,
    overview,
    profiles,
    releases,
    replicas,
    requests,
    slos,
    step_profiles,
    tokens,
    traffic,
    users,
    versions,
)
from console.api.paths import register_converters

register_converters()


def no_such_endpoint(request: HttpRequest) -> HttpResponse:
    raise Http404


V1 = "v1/"
MODEL = f"{V1}models/<name:model>/"
urlpatterns: list[URLPattern | URLResolver] = [
    path(f"{V1}status/", overview.Status.as_view()),
    path(f"{V1}models/", models.ModelList.as_view()),
    path(MODEL, models.ModelDetail.as_view()),
    path(f"{MODEL}lanes/", models.ModelLanes.as_view()),
    path(f"{MODEL}lanes/<name:lane>/", models.ModelLane.as_view()),
    path(f"{MODEL}gateway/", models.ModelGateway.as_view()),
    path(f"{MODEL}traffic-control/", gateways.ModelTrafficControl.as_view()),
    path(f"{MODEL}latency/", latency.Latency.as_view()),
    path(f"{MODEL}latency/difference/", latency.LatencyDifference.as_view()),
    path(f"{MODEL}latency/regions/", latency.LatencyRegions.as_view()),
    path(f"{MODEL}latency/composition/", latency.LatencyComposition.as_view()),
    path(f"{MODEL}latency/events/", latency.LatencyEvents.as_view()),
    path(f"{MODEL}latency/requests/", latency.LatencyRequests.as_view()),
    path(f"{MODEL}memory/", memory.ModelMemoryView.as_view()),
    path(f"{MODEL}versions/", versions.VersionList.as_view()),
    path(f"{MODEL}versions/<name:version>/", versions.VersionDetail.as_view()),
    path(f"{MODEL}versions/<name:version>/verify/", versions.VersionVerify.as_view()),
    path(f"{MODEL}releases/", releases.ReleaseList.as_view()),
    path(f"{MODEL}releases/<number:number>/", releases.ReleaseDetail.as_view()),
    path(f"{MODEL}releases/<number:number>/scale/", releases.ReleaseScale.as_view()),
    path(f"{MODEL}plan/", traffic.PlanInForce.as_view()),
    path(f"{MODEL}plans/", traffic.PlanList.as_view()),
    path(f"{MODEL}rollback/", traffic.PlanRollback.as_view()),
    path(f"{V1}profiles/", profiles.ProfileList.as_view()),
    path(f"{V1}profiles/<name:name>/", profiles.ProfileDetail.as_view()),
    path(f"{V1}replicas/", replicas.ReplicaList.as_view()),
    path(f"{V1}replicas/<identity:replica_id>/", replicas.ReplicaDetail.as_view()),
    path(f"{V1}replicas/<identity:replica_id>/drain/", replicas.ReplicaDrain.as_view()),
    path(f"{V1}replicas/<identity:replica_id>/restart/", replicas.ReplicaRestart.as_view()),
    path(f"{V1}replicas/<identity:replica_id>/profiles/", step_profiles.StepProfileList.as_view()),
    path(
        f"{V1}replicas/<identity:replica_id>/profiles/<number:number>/",
        step_profiles.StepProfileDetail.as_view(),
    ),
    path(f"{V1}requests/<request_id:request_id>/", requests.RequestDetail.as_view()),
    path(f"{V1}requests/<request_id:request_id>/text/", captures.RequestText.as_view()),
    path(f"{V1}nodes/", nodes.NodeList.as_view()),
    path(f"{V1}nodes/<name:name>/", nodes.NodeDetail.as_view()),
    path(f"{V1}nodes/<name:name>/cordon/", nodes.NodeCordon.as_view()),
    path(f"{V1}nodes/<name:name>/drain/", nodes.NodeDrain.as_view()),
    path(f"{V1}nodes/<name:name>/return/", nodes.NodeReturn.as_view()),
    path(f"{V1}devices/", nodes.DeviceList.as_view()),
    path(f"{V1}runtimes/", nodes.RuntimeList.as_view()),
    path(f"{V1}memory/", memory.PoolMemoryView.as_view()),
    path(f"{V1}memory/map/", memory.MemoryMapView.as_view()),
    path(f"{V1}gateways/", gateways.GatewayList.as_view()),
    path(f"{V1}keys/", keys.KeyList.as_view()),
    path(f"{V1}keys/<name:name>/", keys.KeyDetail.as_view()),
    path(f"{V1}keys/<name:name>/revoke/", keys.KeyRevoke.as_view()),
    path(f"{V1}tokens/", tokens.TokenList.as_view()),
    path(f"{V1}tokens/<identity:token_id>/", tokens.TokenDetail.as_view()),
    path(f"{V1}users/", users.UserList.as_view()),
    path(f"{V1}users/<user_name:user_name>/", users.UserDetail.as_view()),
    path(f"{V1}slos/", slos.SloList.as_view()),
    path(f"{V1}slos/<number:number>/", slos.SloDetail.as_view()),
    path(f"{V1}slos/<number:number>/accept/", slos.SloAccept.as_view()),
    path(f"{V1}slos/<number:number>/dismiss/", slos.SloDismiss.as_view()),
    path(f"{V1}slos/<number:number>/hold/", slos.SloHold.as_view()),
    path(f"{V1}alerts/", alerts.AlertList.as_view()),
    path(f"{V1}alerts/<number:number>/", alerts.AlertDetail.as_view()),
    path(f"{V1}alerts/<number:number>/acknowledge/", alerts.AlertAcknowledge.as_view()),
    path(f"{V1}alerts/<number:number>/hold/", alerts.AlertHold.as_view()),
    path(f"{V1}restrictions/", alerts.RestrictionList.as_view()),
    path(f"{V1}restrictions/<number:number>/", alerts.RestrictionDetail.as_view()),
    path(f"{V1}rules/", alerts.RuleList.as_view()),
    path(f"{V1}rules/<name:name>/", alerts.RuleDetail.as_view()),
    path(f"{V1}webhooks/", alerts.WebhookList.as_view()),
    path(f"{V1}webhooks/<name:name>/", alerts.WebhookDetail.as_view()),
    path(f"{V1}audit/", audit.AuditList.as_view()),
    path(f"{V1}schema/", docs.Schema.as_view(), name="api-schema"),
    path("docs/", docs.Docs.as_view(url_name="api-schema"), name="api-docs"),
    re_path("", no_such_endpoint),
]
