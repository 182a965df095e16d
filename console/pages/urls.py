"""Routes of the pages: wiring only."""

from __future__ import annotations

from django.urls import path

from console.pages import (
    account,
    audit,
    keys,
    models,
    nodes,
    overview,
    playground,
    profiles,
    releases,
    replicas,
    sign_in,
    traffic,
    versions,
)

urlpatterns = [
    path("", overview.show_overview, name="overview"),
    path("sign-in/", sign_in.SignIn.as_view(), name="sign-in"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
    path("account/", account.show_account, name="account"),
    path("account/tokens/<int:token_id>/revoke/", account.revoke, name="token-revoke"),
    path("models/", models.list_all, name="model-list"),
    path("models/new/", models.add, name="model-new"),
    path("models/<str:name>/", models.show, name="model"),
    path("models/<str:name>/plan/", traffic.set_weights, name="plan"),
    path("models/<str:name>/plan/preview/", traffic.preview, name="plan-preview"),
    path("models/<str:name>/rollback/", traffic.roll_back, name="rollback"),
    path("models/<str:name>/versions/new/", versions.add, name="version-new"),
    path("models/<str:name>/versions/<str:version>/retire/", versions.retire, name="version-retire"),
    path("models/<str:name>/versions/<str:version>/verify/", versions.verify, name="version-verify"),
    path("models/<str:name>/releases/new/", releases.add, name="release-new"),
    path("models/<str:name>/releases/<int:number>/scale/", releases.scale, name="release-scale"),
    path("replicas/", replicas.list_all, name="replica-list"),
    path("replicas/<str:replica_id>/", replicas.show, name="replica"),
    path("replicas/<str:replica_id>/drain/", replicas.drain, name="replica-drain"),
    path("replicas/<str:replica_id>/restart/", replicas.restart, name="replica-restart"),
    path("nodes/", nodes.list_all, name="node-list"),
    path("nodes/<str:name>/<str:wish>/", nodes.wish, name="node-wish"),
    path("profiles/", profiles.list_all, name="profile-list"),
    path("profiles/new/", profiles.add, name="profile-new"),
    path("profiles/check/", profiles.check, name="profile-check"),
    path("keys/", keys.list_all, name="key-list"),
    path("keys/new/", keys.add, name="key-new"),
    path("keys/<str:name>/revoke/", keys.revoke, name="key-revoke"),
    path("playground/", playground.show, name="playground"),
    path("audit/", audit.show, name="audit"),
]
