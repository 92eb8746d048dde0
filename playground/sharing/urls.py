from django.urls import path

from playground.sharing import views

urlpatterns = [
    path("<str:token>", views.demo, name="demo"),
    path("<str:token>/embed", views.embed, name="demo_embed"),
    path("<str:token>/preview.png", views.preview, name="demo_preview"),
]
