"""The pages. Every page's state is in its URL, in readable parameters: `split q sort sel view attempt`."""

from django.urls import path

from dashboard.pages.compare import views as compare
from dashboard.pages.context import views as context
from dashboard.pages.exports import views as exports
from dashboard.pages.findings import add_form
from dashboard.pages.findings import views as findings
from dashboard.pages.flags import views as flags
from dashboard.pages.group import views as group
from dashboard.pages.guidance.views import guidance_page
from dashboard.pages.labels import rubric
from dashboard.pages.labels import views as labels
from dashboard.pages.live import views as live
from dashboard.pages.palette import views as go
from dashboard.pages.pins import pin_box, range_form
from dashboard.pages.pins import views as pins
from dashboard.pages.prompt import views as prompt
from dashboard.pages.queues import agreement, create_form
from dashboard.pages.queues import views as queues
from dashboard.pages.rescores import views as rescores
from dashboard.pages.review import views as review
from dashboard.pages.reward_check import views as reward_check
from dashboard.pages.run import chart_data
from dashboard.pages.run import views as run
from dashboard.pages.runs import bulk_actions, demo
from dashboard.pages.runs import views as runs
from dashboard.pages.sample import fields_view, prefetch
from dashboard.pages.sample import views as sample
from dashboard.pages.saved_views import views as saved_views
from dashboard.pages.search import views as search
from dashboard.pages.settings import (
    audit,
    disk,
    members,
    preferences,
    projects,
    retention,
    second_factor,
    sessions,
    tokens,
)
from dashboard.pages.sharing import views as sharing
from dashboard.pages.sign_in import openid
from dashboard.pages.sign_in import views as sign_in
from dashboard.pages.step import views as step
from dashboard.pages.timeline import views as timeline

urlpatterns = [
    path("", runs.runs_page, name="runs"),
    path("demo/", demo.load_demo_view, name="load-demo"),
    path("runs/<str:uid>/", run.run_page, name="run"),
    path("runs/<str:uid>/charts.json", chart_data.chart_data_view, name="charts"),
    path("runs/<str:uid>/context/", context.context_page, name="context"),
    path("runs/<str:uid>/context/config.yaml", context.config_yaml_view, name="config-yaml"),
    path("runs/<str:uid>/context/overrides.txt", context.config_overrides_view, name="config-overrides"),
    path("audit/", audit.audit_page, name="audit"),
    path("disk/", disk.disk_page, name="disk"),
    path("runs/<str:uid>/timeline/", timeline.timeline_page, name="timeline"),
    path("runs/<str:uid>/reward-check/", reward_check.reward_check_page, name="reward-check"),
    path("runs/<str:uid>/rescores/", rescores.rescores_page, name="rescores"),
    path("runs/<str:uid>/rescores/<int:pk>/", rescores.rescore_page, name="rescore"),
    path("runs/<str:uid>/rescores/<int:pk>/delete/", rescores.delete_rescore_view, name="rescore-delete"),
    path("runs/<str:uid>/nearest/<str:step>/", run.nearest_step_view, name="nearest"),
    path("runs/<str:uid>/steps/<str:step>/", step.step_page, name="step"),
    path("runs/<str:uid>/groups/<str:step>/<path:group>/", group.group_page, name="group"),
    path("runs/<str:uid>/prompts/<str:key>/", prompt.prompt_page, name="prompt"),
    path("samples/", prefetch.prefetch_panes_view, name="ahead"),
    path("samples/<str:pk>/", sample.sample_page, name="sample"),
    path("samples/<str:pk>/file/", fields_view.download_field_view, name="sample-file"),
    path("samples/<str:pk>/images/<str:digest>/", sample.sample_image_view, name="sample-image"),
    path("samples/<str:pk>/flags/", flags.raise_flag_view, name="flag"),
    path("samples/<str:pk>/labels/", labels.sample_labels_page, name="sample-labels"),
    path("export/", exports.export_page, name="export"),
    path("findings/", findings.findings_page, name="findings"),
    path("findings/add/", add_form.add_to_finding_view, name="finding-add"),
    path("findings/<int:pk>/", findings.finding_page, name="finding"),
    path("findings/<int:pk>/edit/", findings.edit_finding_view, name="finding-edit"),
    path("findings/<int:pk>/remove/", findings.remove_finding_view, name="finding-remove"),
    path("findings/<int:pk>/export/", findings.export_finding_view, name="finding-export"),
    path("findings/exhibits/<int:pk>/images/<str:digest>/", findings.evidence_image_view, name="finding-image"),
    path("findings/exhibits/<int:pk>/", findings.edit_evidence_item_view, name="exhibit"),
    path("flags/<int:pk>/withdraw/", flags.withdraw_flag_view, name="withdraw"),
    path("runs/<str:uid>/flags/", flags.flag_samples_view, name="flag-many"),
    path("runs/<str:uid>/flags/undo/", flags.undo_last_action_view, name="flag-undo"),
    path("runs/<str:uid>/seen/", review.mark_viewed_view, name="seen"),
    path("samples/<str:pk>/verdict/", review.save_decision_view, name="verdict"),
    path("queues/", queues.queues_page, name="queues"),
    path("queues/new/", create_form.new_queue_page, name="queue-new"),
    path("queues/<int:pk>/", queues.queue_page, name="queue"),
    path("queues/<int:pk>/update/", queues.update_queue_view, name="queue-update"),
    path("queues/<int:pk>/agreement/", agreement.agreement_page, name="queue-agreement"),
    path("queues/<int:pk>/items/<int:item>/decide/", agreement.decide_item_view, name="queue-decide"),
    path("queues/<int:pk>/review/", queues.review_queue_page, name="queue-review"),
    path("queues/<int:pk>/skipped/", queues.reoffer_skipped_view, name="queue-skipped"),
    path("queues/<int:pk>/undo/", queues.undo_answer_view, name="queue-undo"),
    path("queues/<int:pk>/items/<int:item>/answers/", queues.save_answers_view, name="queue-answer"),
    path("queues/<int:pk>/items/<int:item>/images/<str:digest>/", queues.item_image_view, name="queue-image"),
    path("queues/<int:pk>/items/<int:item>/skip/", queues.skip_item_view, name="queue-skip"),
    path("review/", review.review_page, name="review"),
    path("runs/<str:uid>/pins/", pin_box.pin_step_view, name="pin-step"),
    path("pins/", pins.pins_page, name="pins"),
    path("pins/range/", range_form.pin_range_view, name="pin-range"),
    path("pins/plan/", pins.save_plan_view, name="plan-save"),
    path("pins/<int:pk>/note/", pin_box.edit_pin_note_view, name="pin-note"),
    path("pins/<int:pk>/remove/", pin_box.unpin_step_view, name="unpin"),
    path("compare/", compare.compare_page, name="compare"),
    path("go/", go.search_palette_view, name="go"),
    path("search/", search.search_page, name="search"),
    path("views/", saved_views.views_menu_view, name="saved-views"),
    path("views/save/", saved_views.save_view_view, name="save-view"),
    path("views/<int:pk>/", saved_views.open_view, name="saved-view"),
    path("views/<int:pk>/change/", saved_views.change_view_view, name="change-view"),
    path("keys/", preferences.set_shortcuts_view, name="keys"),
    path("tidy/", bulk_actions.apply_bulk_action_view, name="tidy"),
    path("tidy/delete/", bulk_actions.delete_runs_view, name="tidy-delete"),
    path("live/", live.live_page, name="live"),
    path("settings/", projects.settings_page, name="settings"),
    path("members/", members.save_member_of_projects_view, name="members-of-projects"),
    path("password/", members.change_password_view, name="password"),
    path("settings/<str:slug>/", projects.project_page, name="project"),
    path("settings/<str:slug>/members/", members.save_member_view, name="members"),
    path("settings/<str:slug>/members/link/", members.create_member_link_view, name="member-link"),
    path("settings/<str:slug>/delete/", projects.delete_project_view, name="project-delete"),
    path("settings/<str:slug>/reasons/", projects.save_reasons_view, name="reasons"),
    path("settings/<str:slug>/rubric/", rubric.rubric_page, name="rubric"),
    path("settings/<str:slug>/guidance/", guidance_page, name="guidance"),
    path("settings/<str:slug>/correct/", projects.save_correctness_rule_view, name="correct"),
    path("settings/<str:slug>/retention/", retention.retention_page, name="retention"),
    path("settings/<str:slug>/retention/run/", retention.run_retention_view, name="retention-run"),
    path("settings/<str:slug>/retention/report.json", retention.download_report_view, name="retention-report"),
    path("settings/<str:slug>/quota/", retention.save_quota_view, name="quota"),
    path("settings/<str:slug>/loosen/", pins.override_check_view, name="loosen"),
    path("settings/<str:slug>/links/<int:pk>/revoke/", sharing.revoke_link_view, name="revoke-link"),
    path("share/", sharing.share_page, name="share"),
    path("shared/<str:secret>/", sharing.shared_page, name="shared"),
    path("settings/<str:slug>/tokens/", tokens.create_token_view, name="tokens"),
    path("settings/<str:slug>/tokens/<int:pk>/revoke/", tokens.revoke_token_view, name="revoke"),
    path("language/", preferences.set_language_view, name="language"),
    path("language/<str:language>.js", preferences.script_catalogue_view, name="catalogue"),
    path("theme/", preferences.set_theme_view, name="theme"),
    path("sign-in/", sign_in.sign_in_page, name="sign-in"),
    path("sign-in/code/", sign_in.sign_in_code_view, name="sign-in-code"),
    path("sign-in/link/", sign_in.sign_in_link_page, name="sign-in-link"),
    path("sign-in/openid/", openid.start_openid_view, name="sign-in-openid"),
    path("sign-in/openid/callback/", openid.finish_openid_view, name="sign-in-openid-callback"),
    path("second-factor/", second_factor.second_factor_page, name="second-factor"),
    path("sessions/end-others/", sessions.end_other_sessions_view, name="end-other-sessions"),
    path("sessions/<str:handle>/end/", sessions.end_session_view, name="end-session"),
    path("sign-out/", sign_in.sign_out_view, name="sign-out"),
]
